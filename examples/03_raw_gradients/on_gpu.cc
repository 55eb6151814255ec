// SPDX-License-Identifier: Apache-2.0
#include "on_gpu.h"

#include <cstdio>
#include <numeric>
#include <span>
#include <string>

#include <lockstep/ddp/broadcast_parameters.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/ddp/replica_check.h>
#include <lockstep/device/device_runtime.h>
#include "kernels.h"
#include "network.h"

namespace ls = lockstep;

namespace {

// Floats on the device, and their way there and back, which waits: it is for before, between and after many steps.
class Floats {
 public:
  Floats(std::size_t count, const ls::Stream& stream)
      : gpu_(ls::device_runtime(stream.view().device.kind)),
        stream_(stream),
        bytes_(count * sizeof(float)),
        memory_(gpu_.allocate(bytes_, stream)) {
    zero();
  }
  Floats(std::span<const float> values, const ls::Stream& stream) : Floats(values.size(), stream) {
    gpu_.copy(data(), values.data(), bytes_, stream);
    stream_.synchronize(patience());
  }
  void zero() { gpu_.zero(data(), bytes_, stream_); }
  float* data() const { return static_cast<float*>(memory_.get()); }
  std::vector<float> values() const {
    std::vector<float> result(bytes_ / sizeof(float));
    gpu_.copy(result.data(), data(), bytes_, stream_);
    stream_.synchronize(patience());
    return result;
  }

 private:
  static ls::Deadline patience() { return ls::Deadline::after(std::chrono::minutes(5)); }

  ls::DeviceRuntime& gpu_;
  ls::Stream stream_;
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

// All rows of all steps, which lie on the device from the start.
std::vector<float> all_rows(unsigned steps, int numbers, float (*pick)(const Row&, int)) {
  std::vector<float> result;
  for (unsigned step = 0; step < steps; ++step) {
    for (int row = 0; row < kBatch; ++row) {
      for (int i = 0; i < numbers; ++i) result.push_back(pick(row_of(step, row), i));
    }
  }
  return result;
}

}  // namespace

int train_on_gpu(const std::shared_ptr<ls::ProcessGroup>& group, unsigned steps, ls::Shard shard) {
  const int rank = group->rank(), ranks = group->size();
  const int begin = first_row(rank, ranks), end = first_row(rank + 1, ranks);
  if (rank == 0) {
    std::printf("gradients on %s, reduced by %s\n", group->device().str().c_str(),
                std::string(group->backend()).c_str());
  }
  const ls::Stream stream(group->device());
  group->set_stream(stream);  // collectives come behind what is in it, and what is put in later behind them

  const Floats x(all_rows(steps, kInputs, [](const Row& row, int i) { return row.x[i]; }), stream);
  const Floats y(all_rows(steps, 1, [](const Row& row, int) { return row.y; }), stream);
  const Floats hidden(kBatch * kHidden, stream), d_output(kBatch, stream);
  Floats loss(kBatch, stream);  // of this rank's rows, by row, since the last line
  Model alone = initial_model();
  std::vector<Floats> model;
  std::vector<ls::BufferView> views;
  std::vector<ls::NamedBuffer> named;
  for (std::size_t p = 0; p < alone.size(); ++p) {
    model.emplace_back(alone[p], stream);
    views.emplace_back(model[p].data(), kSpecs[p].count(), ls::DType::f32, group->device());
    named.push_back({kSpecs[p].name, views[p]});
  }
  ls::broadcast_parameters(*group, views);  // rank 0's everywhere
  const Weights weights{model[kW1].data(), model[kB1].data(), model[kW2].data(), model[kB2].data()};

  ls::Reducer reducer(kSpecs, group, {.shard = shard});
  ls::DeviceRuntime& gpu = ls::device_runtime(group->device().kind);
  for (unsigned step = 0; step < steps; ++step) {
    const std::size_t first = step * kBatch + static_cast<std::size_t>(begin);
    const Batch batch{x.data() + first * kInputs, y.data() + first, end - begin};
    const Activations activations{hidden.data(), d_output.data(), loss.data()};
    reducer.begin_step({.weight = end - begin});  // the sum over rows is rows times their mean
    forward(weights, batch, activations, stream);
    backward_output(batch, activations, reducer.gradient<float>(kW2), reducer.gradient<float>(kB2), stream);
    reducer.mark_ready(kB2);  // what the stream has now is the gradient
    reducer.mark_ready(kW2);
    backward_hidden(weights, batch, activations, reducer.gradient<float>(kW1), reducer.gradient<float>(kB1), stream);
    reducer.mark_ready(kB1);
    reducer.mark_ready(kW1);
    reducer.finish_step();  // the stream waits for the mean over the whole batch, and the host goes on
    if (shard == ls::Shard::optimizer) {
      reducer.update_shards([&](const ls::ParameterShard& it) {  // an optimizer's state would be as large as the shard
        float* const own = model[it.parameter].data() + it.begin;
        float* const place = reducer.gradient<float>(it.parameter) + it.begin;
        descend(own, place, static_cast<int>(it.end - it.begin), stream);
        gpu.copy(place, own, static_cast<std::size_t>(it.end - it.begin) * sizeof(float), stream);
      });
      for (int p = 0; p < static_cast<int>(model.size()); ++p) {  // all ranks' updated weights
        gpu.copy(model[p].data(), reducer.gradient<float>(p), kSpecs[p].bytes(), stream);
      }
    }
    for (int p = 0; p < static_cast<int>(model.size()) && shard == ls::Shard::none; ++p) {
      descend(model[p].data(), reducer.gradient<float>(p), static_cast<int>(kSpecs[p].count()), stream);
    }
    train_alone(alone, step);  // on the host, while the GPU does the above
    if ((step + 1) % kEvery == 0) {
      const std::vector<float> by_row = loss.values();
      float sum = std::accumulate(by_row.begin(), by_row.end(), 0.0f);
      group->all_reduce(std::span(&sum, 1), {.weight = kEvery * (end - begin)}).wait();  // the mean over all rows
      if (rank == 0) std::printf("step %4u  loss %.5f\n", step + 1, static_cast<double>(sum));
      loss.zero();
    }
  }
  ls::check_replicas(*group, named);  // throws, naming rank and parameter, if they are not equal to the last bit
  Model trained;
  for (const Floats& parameter : model) trained.push_back(parameter.values());
  return compare(trained, alone, rank, ranks);
}
