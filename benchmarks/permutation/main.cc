// SPDX-License-Identifier: Apache-2.0
// What the sample at a position of a shuffled epoch costs, computed, beside a list that is shuffled.
//
// In alternating rounds of one process; times are medians over the rounds.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "lockstep/data/permutation.h"

namespace {

using lockstep::data::Permutation;

constexpr int kRounds = 9;
constexpr std::size_t kPositions = 1 << 17;

// Nanoseconds of `call`, per item.
template <typename Call>
double time_of(std::size_t items, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(items);
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

// Of 0..length-1, as a rank without a computed order has it at the beginning of an epoch: of all samples.
void shuffle_list(std::int64_t length, std::uint64_t seed) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(length));
  std::iota(list.begin(), list.end(), 0);
  std::mt19937_64 generator(seed);
  std::shuffle(list.begin(), list.end(), generator);
}

}  // namespace

int main() {
  fmt::print("ns per sample, medians of {} rounds; a rank computes its own samples, and shuffles all\n", kRounds);
  fmt::print("{:>20} {:>14} {:>12} {:>14} {:>16}\n", "length", "computed", "one by one", "std::shuffle",
             "computed/shuffle");
  std::int64_t sum = 0;  // of samples, so that they are computed
  for (const std::int64_t length : {std::int64_t{4096}, std::int64_t{60000}, std::int64_t{1281167},
                                    std::int64_t{20000000}, std::int64_t{1} << 40}) {
    constexpr std::int64_t kLongestList = 100'000'000;
    std::vector<double> computed, singly, shuffled;
    for (int round = 0; round < kRounds; ++round) {
      const Permutation order(length, 1, round);
      std::vector<std::int64_t> positions(kPositions);
      for (std::size_t i = 0; i < kPositions; ++i) positions[i] = static_cast<std::int64_t>(i) % length;
      std::vector<std::int64_t> samples = positions;
      computed.push_back(time_of(kPositions, [&] { order.map(samples); }));
      singly.push_back(time_of(kPositions, [&] {
        for (const std::int64_t position : positions) sum += order[position];
      }));
      sum -= std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
      if (length > kLongestList) continue;
      const auto times = std::max<std::int64_t>(1, static_cast<std::int64_t>(kPositions) / length);
      shuffled.push_back(time_of(static_cast<std::size_t>(times * length), [&] {
        for (std::int64_t i = 0; i < times; ++i) shuffle_list(length, static_cast<std::uint64_t>(round));
      }));
    }
    fmt::print("{:>20} {:>14.1f} {:>12.1f}", length, median(computed), median(singly));
    if (shuffled.empty()) {
      fmt::print(" {:>14} {:>16}\n", "-", "-");
    } else {
      fmt::print(" {:>14.1f} {:>16.1f}\n", median(shuffled), median(computed) / median(shuffled));
    }
  }
  return sum == 0 ? 0 : 1;  // one by one is as all together
}
