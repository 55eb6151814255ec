// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/all_reduce/measure.h"

#include <algorithm>
#include <chrono>

namespace lockstep::bench {
namespace {

double seconds_of(const Contender& contender, int batch) {
  contender.barrier();
  if (contender.prepare) {
    contender.prepare();
    contender.barrier();
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < batch; ++i) contender.run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / batch;
}

// An operation is over when the last rank is through.
void take_slowest(ProcessGroup& group, std::vector<double>& times) {
  group.all_reduce(BufferView(std::span(times)), {.op = ReduceOp::max}).wait();
}

}  // namespace

Effort effort_for(std::size_t bytes) {
  if (bytes <= (16u << 10)) return {7, 30, 100};
  if (bytes <= (1u << 20)) return {7, 20, 10};
  if (bytes <= (8u << 20)) return {7, 15, 1};
  if (bytes <= (32u << 20)) return {7, 7, 1};
  return {5, 5, 1};
}

std::vector<std::vector<double>> measure_in_turns(ProcessGroup& group, const std::vector<Contender>& contenders,
                                                  const Effort& effort) {
  std::vector<std::vector<double>> times(contenders.size());
  for (int block = 0; block < effort.blocks; ++block) {
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      seconds_of(contenders[c], 1);  // brings its memory and code back into the caches
      for (int i = 0; i < effort.samples; ++i) {
        // What is prepared serves one operation.
        times[c].push_back(seconds_of(contenders[c], contenders[c].prepare ? 1 : effort.batch));
      }
    }
  }
  for (auto& samples : times) take_slowest(group, samples);
  return times;
}

double ratio(const std::vector<double>& a, const std::vector<double>& b, const Effort& effort) {
  const auto of_block = [&](const std::vector<double>& times, int block) {
    const auto begin = times.begin() + block * effort.samples;
    return median({begin, begin + effort.samples});
  };
  std::vector<double> ratios;
  for (int block = 0; block < effort.blocks; ++block) ratios.push_back(of_block(a, block) / of_block(b, block));
  return median(std::move(ratios));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep::bench
