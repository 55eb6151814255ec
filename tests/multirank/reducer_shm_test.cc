// The Reducer over the backends that are built in: shm with ranks as threads, and the group of one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/ddp/broadcast_parameters.h"
#include "runtime/ddp/reducer.h"
#include "runtime/ddp/replica_check.h"
#include "runtime/device/half.h"
#include "runtime/trace/step_summary.h"
#include "tests/support/rank_threads.h"

namespace lockstep {
namespace {

using testing::run_ranks;
using Group = std::shared_ptr<ProcessGroup>;

// An MLP's shapes: about 70,000 parameters, twelve tensors.
std::vector<ParameterSpec> layers(DType dtype = DType::f32) {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 6; ++layer) {
    specs.push_back({"layer" + std::to_string(layer) + ".weight", dtype, {107, 107}});
    specs.push_back({"layer" + std::to_string(layer) + ".bias", dtype, {107}});
  }
  return specs;
}
constexpr ReducerOptions kSmallBuckets{{.cap_bytes = 64 << 10, .first_cap_bytes = 32 << 10}};

testing::RankThreadsOptions backend_for(int ranks) { return {.backend = ranks == 1 ? "single" : "shm"}; }

// A gradient that depends on sample, parameter and element, in [-1, 1).
float sample_gradient(std::uint64_t sample, int parameter, std::int64_t element) {
  const auto bits = philox({static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(parameter),
                            static_cast<std::uint32_t>(element), 0},
                           {7, 0});
  return 2.0f * uniform01(bits[0]) - 1.0f;
}

std::vector<int> shuffled(std::size_t n, std::uint64_t seed, std::uint64_t stream) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  Generator random(seed, stream);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

TEST(ReducerShm, EqualsTheMeanOfTheGlobalBatchForRandomPartitions) {
  const std::vector<ParameterSpec> specs{
      {"w", DType::f32, {300, 7}}, {"b", DType::f32, {7}}, {"v", DType::f32, {7, 90}}};
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + ", seed " + std::to_string(seed));
      Generator random(seed, static_cast<std::uint64_t>(ranks));
      std::vector<std::vector<std::uint64_t>> shards(static_cast<std::size_t>(ranks));
      const std::uint64_t batch = 1 + random.below(16);
      for (std::uint64_t s = 0; s < batch; ++s) shards[random.below(static_cast<std::uint64_t>(ranks))].push_back(s);
      std::vector<std::vector<double>> mean;
      for (int p = 0; p < 3; ++p) {
        mean.emplace_back(static_cast<std::size_t>(specs[static_cast<std::size_t>(p)].count()));
        for (std::size_t i = 0; i < mean.back().size(); ++i) {
          for (std::uint64_t s = 0; s < batch; ++s) {
            mean.back()[i] += static_cast<double>(sample_gradient(s, p, static_cast<std::int64_t>(i)));
          }
          mean.back()[i] /= static_cast<double>(batch);
        }
      }
      run_ranks(
          ranks,
          [&](const Group& group) {
            Reducer reducer(specs, group, {{.cap_bytes = 2048, .first_cap_bytes = 1024}});
            const auto& samples = shards[static_cast<std::size_t>(group->rank())];
            for (int step = 0; step < 4; ++step) {
              reducer.begin_step({.weight = static_cast<std::int64_t>(samples.size())});
              for (const int p : shuffled(samples.empty() ? 0 : 3, seed, static_cast<std::uint64_t>(group->rank()))) {
                float* gradient = reducer.gradient<float>(p);
                for (std::int64_t i = 0; i < specs[static_cast<std::size_t>(p)].count(); ++i) {
                  gradient[i] = 0;
                  for (const std::uint64_t s : samples) gradient[i] += sample_gradient(s, p, i);
                }
                reducer.mark_ready(p);
              }
              ASSERT_EQ(reducer.finish_step(), static_cast<std::int64_t>(batch));
              for (int p = 0; p < 3; ++p) {
                const float* gradient = reducer.gradient<float>(p);
                double largest = 0, worst = 0;
                for (std::size_t i = 0; i < mean[static_cast<std::size_t>(p)].size(); ++i) {
                  const double expected = mean[static_cast<std::size_t>(p)][i];
                  largest = std::max(largest, std::abs(expected));
                  worst = std::max(worst, std::abs(expected - static_cast<double>(gradient[i])));
                }
                EXPECT_LE(worst, 1e-5 * largest) << "step " << step << ", parameter " << p;
              }
            }
          },
          backend_for(ranks));
    }
  }
}

TEST(ReducerShm, LaunchesTheFirstBucketBeforeTheLastGradientInEveryStep) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(
        ranks,
        [](const Group& group) {
          const auto specs = layers();
          Reducer reducer(specs, group, kSmallBuckets);
          ASSERT_GE(reducer.plan().buckets.size(), 4u);
          trace::StepSummary summary;
          for (int step = 0; step < 20; ++step) {
            reducer.begin_step({.weight = 1});
            for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
              std::fill_n(reducer.gradient<float>(p), specs[static_cast<std::size_t>(p)].count(), 1.0f);
              reducer.mark_ready(p);
            }
            reducer.finish_step();
            const trace::StepRecord& record = reducer.last_step();
            summary.add(record);
            EXPECT_LT(record.buckets[0].gradients_ready, record.gradients_ready) << "step " << step;
            EXPECT_LT(record.buckets[0].launched, record.last_gradient_ready) << "step " << step;
          }
          EXPECT_EQ(summary.overlapped_steps(), 20);
        },
        backend_for(ranks));
  }
}

TEST(ReducerShm, KeepsReplicasBitEqualForTwoHundredSteps) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [](const Group& group) {
      const std::vector<ParameterSpec> specs{
          {"w", DType::f32, {61, 17}}, {"b", DType::f32, {17}}, {"s", DType::f32, {}}};
      std::vector<std::vector<float>> weights;
      std::vector<BufferView> views;
      for (const auto& spec : specs) {
        // Different on every rank, until rank 0's are told to all.
        weights.emplace_back(static_cast<std::size_t>(spec.count()), static_cast<float>(group->rank() + 1));
      }
      for (auto& it : weights) views.emplace_back(std::span(it));
      broadcast_parameters(*group, views);
      std::vector<NamedBuffer> named;
      for (std::size_t p = 0; p < specs.size(); ++p) named.push_back({specs[p].name, views[p]});

      Reducer reducer(specs, group, {{.cap_bytes = 1024, .first_cap_bytes = 512}});
      std::uint64_t before = check_replicas(*group, named);
      for (std::uint64_t step = 0; step < 200; ++step) {
        const auto weight = static_cast<std::int64_t>(1 + (step + static_cast<std::uint64_t>(group->rank())) % 3);
        reducer.begin_step({.weight = weight});
        for (const int p : shuffled(specs.size(), step, static_cast<std::uint64_t>(group->rank()))) {
          float* gradient = reducer.gradient<float>(p);
          const auto count = specs[static_cast<std::size_t>(p)].count();
          for (std::int64_t i = 0; i < count; ++i) {
            gradient[i] = static_cast<float>(weight) *
                          sample_gradient(step * 8 + static_cast<std::uint64_t>(group->rank()), p, i);
          }
          reducer.mark_ready(p);
        }
        reducer.finish_step();
        for (std::size_t p = 0; p < specs.size(); ++p) {
          const float* gradient = reducer.gradient<float>(static_cast<int>(p));
          for (std::size_t i = 0; i < weights[p].size(); ++i) weights[p][i] -= 0.1f * gradient[i];
        }
        const std::uint64_t hash = check_replicas(*group, named);
        EXPECT_NE(hash, before) << "step " << step << " trained nothing";
        before = hash;
      }
      // The check can fail: one bit on one rank.
      if (group->rank() == 1) weights[1][3] = std::nextafterf(weights[1][3], 1e9f);
      try {
        check_replicas(*group, named);
        ADD_FAILURE() << "a bit that differs was not seen";
      } catch (const Mismatch& error) {
        EXPECT_NE(std::string(error.what()).find("parameter 1, 'b': rank 1 differs"), std::string::npos)
            << error.what();
      }
    });
  }
}

TEST(ReducerShm, ReducesEveryDtypeInBucketsOfItsOwn) {
  run_ranks(3, [](const Group& group) {
    std::vector<ParameterSpec> specs;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::f16, DType::bf16}) {
      specs.push_back({"p" + std::to_string(specs.size()), dtype, {33}});
    }
    Reducer reducer(specs, group);
    EXPECT_EQ(reducer.plan().buckets.size(), 4u);
    for (int step = 0; step < 3; ++step) {
      // Weights 1, 2, 3; mean gradients 4, 8, 12; all exact in 16 bits: 4 + 16 + 36 = 56 over 6.
      const int weight = group->rank() + 1;
      const auto value = static_cast<float>(weight * weight * 4);
      reducer.begin_step({.weight = weight});
      for (int p = 4; p >= 0; --p) {
        for (int i = 0; i < 33; ++i) {
          switch (specs[static_cast<std::size_t>(p)].dtype) {
            case DType::f64: reducer.gradient<double>(p)[i] = static_cast<double>(value); break;
            case DType::bf16: reducer.gradient<bfloat16>(p)[i] = to_bfloat16(value); break;
            case DType::f16: reducer.gradient<float16>(p)[i] = to_float16(value); break;
            default: reducer.gradient<float>(p)[i] = value;
          }
        }
        reducer.mark_ready(p);
      }
      EXPECT_EQ(reducer.finish_step(), 6);
      const double mean = 56.0 / 6.0;
      EXPECT_NEAR(static_cast<double>(reducer.gradient<float>(0)[32]), mean, 1e-6 * mean);
      EXPECT_NEAR(reducer.gradient<double>(2)[32], mean, 1e-15 * mean);
      EXPECT_NEAR(static_cast<double>(to_float(reducer.gradient<bfloat16>(1)[32])), mean, mean / 256);
      EXPECT_NEAR(static_cast<double>(to_float(reducer.gradient<bfloat16>(4)[0])), mean, mean / 256);
      EXPECT_NEAR(static_cast<double>(to_float(reducer.gradient<float16>(3)[32])), mean, mean / 2048);
    }
  });
}

TEST(ReducerShm, APeerThatLeavesInAStepIsSeenByAllInTheirs) {
  std::atomic<int> seen{0};
  run_ranks(3, [&](const Group& group) {
    const auto specs = layers();
    Reducer reducer(specs, group, kSmallBuckets);
    for (int step = 0; step < 3; ++step) {
      try {
        reducer.begin_step({.weight = 1});
        for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
          if (step == 2 && group->rank() == 1 && p == 4) {
            group->abort("rank 1 has no more power");
            return;
          }
          std::fill_n(reducer.gradient<float>(p), specs[static_cast<std::size_t>(p)].count(), 1.0f);
          reducer.mark_ready(p);
        }
        reducer.finish_step();
        EXPECT_LT(step, 2);
      } catch (const PeerLost& error) {
        ++seen;
        const std::string cause = error.what();
        // An abort overtakes: a slower rank may still be at the end of the step before.
        EXPECT_TRUE(cause.starts_with("step 2, ") || cause.starts_with("step 1, ")) << cause;
        EXPECT_NE(cause.find("rank 1 has no more power"), std::string::npos) << cause;
        ASSERT_NE(error.cause(), nullptr) << "who puts the place in front keeps it";
        EXPECT_EQ(error.cause()->kind, Cause::Kind::aborted);
        EXPECT_EQ(error.cause()->rank, 1);
        EXPECT_TRUE(cause.starts_with("step " + std::to_string(error.cause()->step) + ", ")) << cause;
        try {
          reducer.begin_step();
          ADD_FAILURE() << "the group has failed";
        } catch (const PeerLost& again) {
          EXPECT_EQ(again.what(), cause);
        }
        return;
      }
    }
  });
  EXPECT_EQ(seen, 2);
}

TEST(ReducerShm, AReducerDroppedInAStepFailsTheOthersWithItsRank) {
  std::atomic<int> seen{0};
  run_ranks(2, [&](const Group& group) {
    const auto specs = layers();
    try {
      Reducer reducer(specs, group, kSmallBuckets);
      reducer.begin_step({.weight = 1});
      for (int p = static_cast<int>(specs.size()) - 1; p >= (group->rank() == 1 ? 6 : 0); --p) reducer.mark_ready(p);
      if (group->rank() == 0) reducer.finish_step();
    } catch (const PeerLost& error) {
      ++seen;
      const std::string cause = error.what();
      EXPECT_NE(cause.find("rank 1 left step 0 before finish_step"), std::string::npos) << cause;
    }
  });
  EXPECT_EQ(seen, 1);
}

TEST(ReducerShm, ARankThatStopsTrainingEarlyIsNamedInTheOthersStep) {
  std::atomic<int> seen{0};
  run_ranks(3, [&](const Group& group) {
    const auto specs = layers();
    Reducer reducer(specs, group, kSmallBuckets);
    const int steps = group->rank() == 1 ? 3 : 5;
    try {
      for (int step = 0; step < steps; ++step) {
        reducer.begin_step({.weight = 1});
        for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) reducer.mark_ready(p);
        reducer.finish_step();
      }
    } catch (const PeerLost& error) {
      ++seen;
      const std::string cause = error.what();
      // The first that starts a collective of step 3 fails the group; a slower rank may still end step 2.
      EXPECT_TRUE(cause.starts_with("step 3, ") || cause.starts_with("step 2, ")) << cause;
      EXPECT_NE(cause.find("rank 1 "), std::string::npos) << cause;
      EXPECT_NE(cause.find("left after collective"), std::string::npos) << cause;
    }
  });
  EXPECT_EQ(seen, 2);
}

TEST(ReducerShm, DifferentModelsAreAMismatchOnEveryRank) {
  std::array<std::string, 3> texts;
  run_ranks(3, [&](const Group& group) {
    auto specs = layers();
    if (group->rank() == 2) specs[3].shape = {108};
    try {
      Reducer reducer(specs, group);
    } catch (const Mismatch& error) {
      texts[static_cast<std::size_t>(group->rank())] = error.what();
    }
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("parameter 3: ranks 0 and 1 have 'layer1.bias' float32 [107]; rank 2 has 'layer1.bias' float32 "
                        "[108]"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace lockstep
