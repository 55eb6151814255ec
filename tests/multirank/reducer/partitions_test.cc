// SPDX-License-Identifier: Apache-2.0
// A step's gradients are the mean over the global batch, for any partition of it over ranks and micro-batches, and have
// the same bits on all ranks.
#include <cmath>
#include <span>

#include "tests/multirank/reducer/suite.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing::partitions_test {
namespace {

constexpr std::size_t kSteps = 3;

struct Shard {
  std::vector<std::vector<std::uint64_t>> micro_batches;  // of samples
  std::vector<int> order;
};

// Samples go to any rank and micro-batch; every rank has one micro-batch at least.
class Partition {
 public:
  Partition(int ranks, std::uint64_t seed) : seed_(seed) {
    Generator random(seed, static_cast<std::uint64_t>(ranks));
    for (std::uint64_t i = 0, n = 1 + random.below(12); i < n; ++i) {
      const auto count = static_cast<std::int64_t>(random.below(10) == 0 ? 2000 : random.below(50));
      specs.push_back({"p" + std::to_string(i), DType::f32, {count}});
    }
    options = {{.cap_bytes = random.below(1024), .first_cap_bytes = random.below(512)}};
    for (std::size_t step = 0; step < kSteps; ++step) {
      auto& by_rank = shards.emplace_back(static_cast<std::size_t>(ranks));
      for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        by_rank[rank].micro_batches.resize(1 + random.below(3));
        by_rank[rank].order = shuffled(specs.size(), seed * kSteps + step, rank);
      }
      batch.push_back(random.below(20));
      for (std::uint64_t sample = 0; sample < batch.back(); ++sample) {
        auto& micro_batches = by_rank[random.below(by_rank.size())].micro_batches;
        micro_batches[random.below(micro_batches.size())].push_back(sample);
      }
    }
  }

  // In [-1, 1).
  double gradient(std::uint64_t sample, std::size_t p, std::int64_t i) const {
    const auto bits = philox({static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(p),
                              static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(seed_)},
                             {1, 2});
    return static_cast<double>(2.0f * uniform01(bits[0]) - 1.0f);
  }
  // Largest distance of `seen` from the mean over the step's batch, over the largest mean.
  void expect_mean(std::size_t step, std::size_t p, const std::vector<float>& seen) const {
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      double mean = 0;
      for (std::uint64_t s = 0; s < batch[step]; ++s) mean += gradient(s, p, static_cast<std::int64_t>(i));
      if (batch[step] > 0) mean /= static_cast<double>(batch[step]);
      const double apart = std::abs(mean - static_cast<double>(seen[i]));
      largest = std::max(largest, std::abs(mean));
      worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
    }
    EXPECT_LE(worst, 1e-5 * largest) << "step " << step << ", parameter " << p;
  }

  std::vector<ParameterSpec> specs;
  ReducerOptions options;
  std::vector<std::vector<Shard>> shards;  // by step and rank
  std::vector<std::uint64_t> batch;        // by step: samples

 private:
  std::uint64_t seed_;
};

// expect(step, parameter, gradient) after each step.
template <typename Expect>
void train(const Group& group, const Partition& partition, const ReducerOptions& options, Expect expect) {
  Reducer reducer(partition.specs, group, options);
  for (std::size_t step = 0; step < kSteps; ++step) {
    const Shard& shard = partition.shards[step][static_cast<std::size_t>(group->rank())];
    std::int64_t weight = 0;  // of this rank's so far
    for (std::size_t m = 0; m < shard.micro_batches.size(); ++m) {
      const auto& samples = shard.micro_batches[m];
      weight += std::ssize(samples);
      const bool last = m + 1 == shard.micro_batches.size();
      reducer.begin_step({.weight = static_cast<std::int64_t>(samples.size()), .synchronize = last});
      // Without samples nothing is written, and nothing marked.
      for (const int p : samples.empty() ? std::vector<int>{} : shard.order) {
        write_gradient(*group, reducer, p, [&partition, samples, p](std::int64_t i) {
          double sum = 0;
          for (const std::uint64_t sample : samples) sum += partition.gradient(sample, static_cast<std::size_t>(p), i);
          return sum;
        });
        reducer.mark_ready(p);
      }
      if (last) {
        finish(group, reducer, static_cast<std::int64_t>(partition.batch[step]));
      } else {
        EXPECT_EQ(reducer.finish_step(), weight);
      }
    }
    for (std::size_t p = 0; p < partition.specs.size(); ++p) {
      expect(step, p, gradient_of(*group, reducer, static_cast<int>(p)));
    }
  }
}

using ReducerPartitions = ReducerSuite;

TEST_P(ReducerPartitions, EqualTheMeanOfTheGlobalBatch) {
  run([ranks = GetParam()](const Group& group) {
    const std::uint64_t seeds = group->device().kind == DeviceKind::cpu && !kSanitized ? 30 : 6;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const Partition partition(ranks, seed);
      train(group, partition, partition.options, [&](std::size_t step, std::size_t p, const std::vector<float>& seen) {
        partition.expect_mean(step, p, seen);
        std::vector<float> of_rank0 = seen;
        group->broadcast(BufferView(std::span(of_rank0)), 0).wait();
        EXPECT_EQ(seen, of_rank0) << "step " << step << ", parameter " << p;
      });
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerPartitions, ::testing::ValuesIn(kWorldSizes));

}  // namespace
}  // namespace lockstep::testing::partitions_test
