#include "runtime/ddp/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using testing::FakeWorld;
using testing::Started;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

// Three buckets of two, in reverse order of registration: (f,e), (d,c), (b,a).
const std::vector<ParameterSpec> kSix{{"a", DType::f32, {16}}, {"b", DType::f32, {2, 8}}, {"c", DType::f32, {16}},
                                      {"d", DType::f32, {16}}, {"e", DType::f32, {3}},    {"f", DType::f32, {16}}};
constexpr ReducerOptions kTwoEach{{.cap_bytes = 128, .first_cap_bytes = 128}};

void fill(Reducer& reducer, int parameter, float value) {
  float* gradient = reducer.gradient<float>(parameter);
  const auto count = reducer.parameters()[static_cast<std::size_t>(parameter)].count();
  for (std::int64_t i = 0; i < count; ++i) {
    gradient[i] = reducer.accumulating() ? gradient[i] + value : value;
  }
}

float first(Reducer& reducer, int parameter) { return *reducer.gradient<float>(parameter); }

// Writes `value` times the parameter's number plus one everywhere, last layer first.
void backward(Reducer& reducer, float value) {
  for (int p = static_cast<int>(reducer.parameters().size()) - 1; p >= 0; --p) {
    fill(reducer, p, value * static_cast<float>(p + 1));
    reducer.mark_ready(p);
  }
}

std::vector<Started> all_reduces(const FakeWorld& world, int rank) {
  std::vector<Started> result;
  for (const Started& call : world.started(rank)) {
    if (call.operation == "all_reduce") result.push_back(call);
  }
  return result;
}

TEST(Reducer, TakesTheMeanOverUnevenShards) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const std::int64_t weight[] = {5, 0, 3};
    const std::int64_t mine = weight[group->rank()];
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = mine});
      // The mean gradient of this rank's shard is (rank + 1); a rank without data writes nothing.
      if (mine > 0) backward(reducer, static_cast<float>(mine) * static_cast<float>(group->rank() + 1));
      EXPECT_EQ(reducer.finish_step(), 8);
      for (int p = 0; p < 6; ++p) {
        EXPECT_FLOAT_EQ(first(reducer, p), static_cast<float>(p + 1) * (5 * 1 + 3 * 3) / 8.0f);
      }
    }
  });
}

TEST(Reducer, TellsTheGroupWhichStepItIsIn) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(group->step(), -1);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step();
      EXPECT_EQ(group->step(), step);
      backward(reducer, 1.0f);
      reducer.finish_step();
    }
  });
}

TEST(Reducer, AWorldOfOneDividesOnceAndAsksNobody) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 4});
    backward(reducer, 4.0f);
    EXPECT_EQ(reducer.finish_step(), 4);
    EXPECT_FLOAT_EQ(first(reducer, 2), 3.0f);
  });
  EXPECT_EQ(world.store().num_keys(), 0);
  EXPECT_EQ(world.started(0).size(), 3u);
}

TEST(Reducer, NobodyWithDataGivesZeroWhateverWasWritten) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 0});
    backward(reducer, std::nanf(""));
    EXPECT_EQ(reducer.finish_step(), 0);
    for (int p = 0; p < 6; ++p) EXPECT_EQ(first(reducer, p), 0.0f);
  });
}

TEST(Reducer, AccumulatesMicroBatchesOfUnequalNumber) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 3; ++step) {
      const int micro_batches = group->rank() == 0 ? 3 : 1;
      for (int m = 1; m <= micro_batches; ++m) {
        reducer.begin_step({.weight = 2, .synchronize = m == micro_batches});
        EXPECT_EQ(reducer.accumulating(), m > 1);
        backward(reducer, 2.0f * static_cast<float>(m));
        const std::int64_t weight = reducer.finish_step();
        EXPECT_EQ(weight, m == micro_batches ? 8 : 2 * m);
      }
      EXPECT_FALSE(reducer.accumulating());
      // (2*1 + 2*2 + 2*3) of rank 0 and 2*1 of rank 1, over 8.
      EXPECT_FLOAT_EQ(first(reducer, 3), 4.0f * 14.0f / 8.0f);
    }
  });
  // Only the synchronised steps communicate: three buckets each.
  EXPECT_EQ(all_reduces(world, 0).size(), 9u);
}

TEST(Reducer, AnUnmarkedGradientCountsAsZeroInItsMicroBatchOnly) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 1});
    backward(reducer, 1000.0f);  // stale in the next step
    reducer.finish_step();

    reducer.begin_step({.weight = 1, .synchronize = false});
    fill(reducer, 0, 1.0f);  // a in the first micro-batch only
    reducer.mark_ready(0);
    reducer.finish_step();
    reducer.begin_step({.weight = 1});
    fill(reducer, 5, 10.0f);  // f in the second only
    reducer.mark_ready(5);
    EXPECT_EQ(reducer.finish_step(), 4);
    EXPECT_FLOAT_EQ(first(reducer, 0), 0.5f);
    EXPECT_FLOAT_EQ(first(reducer, 5), 5.0f);
    for (int p = 1; p < 5; ++p) EXPECT_EQ(first(reducer, p), 0.0f) << p;

    reducer.begin_step({.weight = 1});
    reducer.finish_step();
    for (int p = 0; p < 6; ++p) EXPECT_EQ(first(reducer, p), 0.0f) << p;
  });
}

TEST(Reducer, KeepsPaddingZero) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 3});
      backward(reducer, 7.0f);
      reducer.finish_step();
      const float* e = reducer.gradient<float>("e");
      for (int i = 3; i < 16; ++i) EXPECT_EQ(e[i], 0.0f) << "step " << step;
    }
  });
}

TEST(Reducer, MixesDtypes) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer({{"w", DType::f32, {40}}, {"norm", DType::f64, {4}}, {"v", DType::f32, {40}}}, group, kTwoEach);
    EXPECT_EQ(reducer.plan().buckets.size(), 3u);
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step({.weight = 2});
      for (const int p : {2, 0}) {
        fill(reducer, p, static_cast<float>(p + group->rank()));
        reducer.mark_ready(p);
      }
      std::fill_n(reducer.gradient<double>("norm"), 4, 1e300 * (group->rank() + 1));
      reducer.mark_ready("norm");
      EXPECT_EQ(reducer.finish_step(), 4);
      EXPECT_FLOAT_EQ(first(reducer, 2), 5.0f / 4);
      EXPECT_FLOAT_EQ(first(reducer, 0), 1.0f / 4);
      EXPECT_DOUBLE_EQ(*reducer.gradient<double>("norm"), 0.75e300);
    }
  });
}

TEST(Reducer, LaunchesInOneOrderWhateverIsReadyFirst) {
  FakeWorld world(4);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 5; ++step) {
      std::vector<int> order(6);
      std::iota(order.begin(), order.end(), 0);
      Generator random(static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(group->rank()));
      for (std::size_t i = 6; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
      reducer.begin_step({.weight = 1});
      for (const int p : order) {
        fill(reducer, p, static_cast<float>(p));
        reducer.mark_ready(p);
      }
      EXPECT_EQ(reducer.finish_step(), 4);
      for (int p = 0; p < 6; ++p) EXPECT_FLOAT_EQ(first(reducer, p), static_cast<float>(p));
    }
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(world.started(rank), world.started(0)) << "rank " << rank;
  const auto calls = all_reduces(world, 0);
  ASSERT_EQ(calls.size(), 15u);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].offset, static_cast<std::ptrdiff_t>(i % 3 * 128)) << "call " << i;
    EXPECT_EQ(calls[i].weight, 1);
  }
}

TEST(Reducer, LaunchesBeforeTheLastGradientInEveryStep) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.last_step().step, -1);
    for (int step = 0; step < 10; ++step) {
      reducer.begin_step({.weight = 1});
      backward(reducer, 1.0f);
      reducer.finish_step();
      const trace::StepRecord& record = reducer.last_step();
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.gradients_ready, 6);
      ASSERT_EQ(record.buckets.size(), 3u);
      EXPECT_EQ(record.buckets[0].gradients_ready, 2);
      EXPECT_EQ(record.buckets[1].gradients_ready, 4);
      EXPECT_EQ(record.buckets[2].gradients_ready, 6);
      EXPECT_LE(record.begin, record.buckets[0].ready);
      for (const trace::BucketRecord& bucket : record.buckets) {
        EXPECT_EQ(bucket.bytes, 128u);
        EXPECT_LE(bucket.ready, bucket.launched);
        EXPECT_LE(bucket.launched, bucket.finished);
        EXPECT_LE(bucket.finished, record.end);
      }
      EXPECT_LT(record.buckets[0].launched, record.last_gradient_ready);
      EXPECT_GT(record.waited.count(), 0);
      EXPECT_GT(record.hidden.count(), 0);
      EXPECT_GT(record.under_way.count(), 0);
      EXPECT_LE(record.hidden, record.last_gradient_ready - record.begin);
      EXPECT_LE(record.under_way, record.last_gradient_ready - record.buckets[0].launched);
    }
  });
}

TEST(Reducer, PlansAnewOnceInTheOrderThatRank0Saw) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const std::vector<int> forward{0, 1, 2, 3, 4};  // f is never ready
    for (int step = 0; step < 4; ++step) {
      // What is seen in an unsynchronised micro-batch doesn't count.
      reducer.begin_step({.weight = 1, .synchronize = false});
      EXPECT_EQ(reducer.plan_changes(), step == 0 ? 0 : 1);
      backward(reducer, 1.0f);
      reducer.finish_step();
      const BucketPlan before = reducer.plan();
      reducer.begin_step({.weight = 1});
      EXPECT_EQ(reducer.plan().buckets[0].parameters, before.buckets[0].parameters) << "moved while it held gradients";
      if (group->rank() == 0) {
        for (const int p : forward) {
          fill(reducer, p, 1.0f);
          reducer.mark_ready(p);
        }
      } else {
        backward(reducer, 1.0f);
      }
      EXPECT_EQ(reducer.finish_step(), 6);
      for (int p = 0; p < 5; ++p) {
        const auto k = static_cast<float>(p + 1);
        EXPECT_FLOAT_EQ(first(reducer, p), (3 * k + 1 + 2 * k) / 6) << "step " << step;
      }
    }
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{0, 1}));
    EXPECT_EQ(reducer.plan().buckets[2].parameters, (std::vector<int>{4, 5}));
  });
  const auto calls = world.started(0);
  EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [](const Started& c) { return c.operation == "broadcast"; }), 1);
}

TEST(Reducer, FollowsThePlannedOrderOfRank0FromTheFirstStep) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    // Only rank 0's counts: an order of another length elsewhere does no harm.
    reducer.plan_order(group->rank() == 0 ? std::vector<int>{1, 3, 5, 0, 2, 4} : std::vector<int>{0});
    EXPECT_EQ(reducer.plan_changes(), 1);
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{1, 3}));
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 1});
      backward(reducer, 1.0f);
      reducer.finish_step();
      EXPECT_EQ(reducer.plan_changes(), 1);
      EXPECT_FLOAT_EQ(first(reducer, 4), 5.0f);
    }
    EXPECT_THROW(reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}), InvalidArgument);
  });
}

TEST(Reducer, CountsWeightsInTheUnitOfRank0) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.weight_unit(), 1);
    if (group->rank() == 0) {
      EXPECT_THROW(reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}, 0), InvalidArgument);
    }
    reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}, group->rank() == 0 ? 8 : -1);
    EXPECT_EQ(reducer.weight_unit(), 8);
    // Means 1, 2 and 3 of 8, 4 and 0 rows; then of as many on each rank.
    const std::int64_t uneven[] = {8, 4, 0};
    for (const bool even : {false, true}) {
      const std::int64_t weight = even ? 8 : uneven[group->rank()];
      reducer.begin_step({.weight = weight});
      backward(reducer, static_cast<float>(group->rank() + 1) * static_cast<float>(weight) / 8);
      EXPECT_EQ(reducer.finish_step(), even ? 24 : 12);
      EXPECT_FLOAT_EQ(first(reducer, 0), even ? 2.0f : 16.0f / 12);
    }
  });
}

// Everything above at once, against the mean in double precision.
void check_random_partition(int ranks, std::uint64_t seed) {
  SCOPED_TRACE("ranks " + std::to_string(ranks) + ", seed " + std::to_string(seed));
  Generator random(seed, static_cast<std::uint64_t>(ranks));
  std::vector<ParameterSpec> specs;
  for (std::uint64_t i = 0, n = 1 + random.below(12); i < n; ++i) {
    specs.push_back({"p" + std::to_string(i), DType::f32, {static_cast<std::int64_t>(random.below(50))}});
  }
  const ReducerOptions options{{.cap_bytes = random.below(1024), .first_cap_bytes = random.below(512)}};
  const auto gradient_of_sample = [&](std::uint64_t sample, std::size_t p, std::int64_t i) {
    const auto bits = philox({static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(p),
                              static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(seed)},
                             {1, 2});
    return 2.0f * uniform01(bits[0]) - 1.0f;
  };
  // Samples go to any rank and micro-batch; every rank has one micro-batch at least.
  constexpr int kSteps = 3;
  struct Shard {
    std::vector<std::vector<std::uint64_t>> micro_batches;
    std::vector<int> order;
  };
  std::vector<std::vector<Shard>> shards(kSteps, std::vector<Shard>(static_cast<std::size_t>(ranks)));
  std::vector<std::uint64_t> batch(kSteps);
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (Shard& shard : shards[step]) {
      shard.micro_batches.resize(1 + random.below(3));
      shard.order.resize(specs.size());
      std::iota(shard.order.begin(), shard.order.end(), 0);
      for (std::size_t i = specs.size(); i > 1; --i) std::swap(shard.order[i - 1], shard.order[random.below(i)]);
    }
    batch[step] = random.below(20);
    for (std::uint64_t sample = 0; sample < batch[step]; ++sample) {
      auto& micro_batches = shards[step][random.below(static_cast<std::uint64_t>(ranks))].micro_batches;
      micro_batches[random.below(micro_batches.size())].push_back(sample);
    }
  }

  FakeWorld world(ranks);
  world.run([&](const Group& group) {
    Reducer reducer(specs, group, options);
    for (std::size_t step = 0; step < kSteps; ++step) {
      const Shard& shard = shards[step][static_cast<std::size_t>(group->rank())];
      std::int64_t total = 0;
      for (std::size_t m = 0; m < shard.micro_batches.size(); ++m) {
        const auto& samples = shard.micro_batches[m];
        reducer.begin_step(
            {.weight = static_cast<std::int64_t>(samples.size()), .synchronize = m + 1 == shard.micro_batches.size()});
        // Without samples nothing is written, and nothing marked.
        for (const int p : samples.empty() ? std::vector<int>{} : shard.order) {
          const auto at = static_cast<std::size_t>(p);
          float* gradient = reducer.gradient<float>(p);
          for (std::int64_t i = 0; i < specs[at].count(); ++i) {
            float sum = reducer.accumulating() ? gradient[i] : 0.0f;
            for (const std::uint64_t sample : samples) sum += gradient_of_sample(sample, at, i);
            gradient[i] = sum;
          }
          reducer.mark_ready(p);
        }
        total = reducer.finish_step();
      }
      ASSERT_EQ(total, static_cast<std::int64_t>(batch[step]));
      for (std::size_t p = 0; p < specs.size(); ++p) {
        const float* gradient = reducer.gradient<float>(static_cast<int>(p));
        double largest = 0;
        double worst = 0;
        for (std::int64_t i = 0; i < specs[p].count(); ++i) {
          double mean = 0;
          for (std::uint64_t s = 0; s < batch[step]; ++s) mean += gradient_of_sample(s, p, i);
          if (batch[step] > 0) mean /= static_cast<double>(batch[step]);
          largest = std::max(largest, std::abs(mean));
          worst = std::max(worst, std::abs(mean - static_cast<double>(gradient[i])));
        }
        EXPECT_LE(worst, 1e-5 * largest) << "step " << step << ", parameter " << p;
      }
    }
  });
  for (int rank = 1; rank < ranks; ++rank) {
    const auto calls = all_reduces(world, rank);
    const auto expected = all_reduces(world, 0);
    ASSERT_EQ(calls.size(), expected.size());
    for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i].offset, expected[i].offset);
  }
}

TEST(Reducer, EqualsTheMeanOfTheGlobalBatchForRandomPartitions) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) check_random_partition(ranks, seed);
  }
}

// ---- misuse

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

void expect_says(const std::function<void()>& call, const std::vector<std::string>& words) {
  const std::string message = message_of(call);
  for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

TEST(Reducer, NamesParameterAndStepOfAMistakeAndGoesOn) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    expect_says([&] { reducer.mark_ready("a"); }, {"mark_ready outside a step", "begin_step"});
    expect_says([&] { reducer.finish_step(); }, {"finish_step outside a step"});
    expect_says([&] { reducer.begin_step({.weight = -3}); }, {"step 0", "weight -3", "at least 0"});
    expect_says([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 4}); }, {"4 again at position 5"});
    for (int step = 0; step < 2; ++step) {
      const std::string here = "step " + std::to_string(step);
      reducer.begin_step({.weight = 1});
      expect_says([&] { reducer.begin_step(); }, {"begin_step", here, "not finished"});
      fill(reducer, 5, 6.0f);
      reducer.mark_ready("f");
      expect_says([&] { reducer.mark_ready("f"); }, {"'f' float32 [16]", "second time", here});
      expect_says([&] { reducer.mark_ready("g"); }, {"'g'", here, "'a' to 'f'"});
      expect_says([&] { reducer.gradient<float>("g"); }, {"'g'", here});
      expect_says([&] { reducer.gradient<double>("b"); }, {"'b' float32 [2, 8]", "float64", here});
      expect_says([&] { reducer.mark_ready(6); }, {"index 6", here, "there are 6"});
      expect_says([&] { reducer.gradient<float>(-1); }, {"index -1", here});
      EXPECT_EQ(reducer.finish_step(), 1);
      EXPECT_FLOAT_EQ(first(reducer, 5), 6.0f);
    }
    expect_says([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}); }, {"plan_order", "before the first"});
  });
}

TEST(Reducer, RefusesWeightsThatOverflow) {
  FakeWorld world(1);
  world.run([](const Group& group) {
    Reducer reducer(kSix, group);
    reducer.begin_step({.weight = INT64_MAX, .synchronize = false});
    reducer.finish_step();
    expect_says([&] { reducer.begin_step({.weight = 1}); }, {"weight 1", "9223372036854775807"});
  });
}

TEST(Reducer, RefusesToBeMadeOfNothing) {
  FakeWorld world(1);
  expect_says([&] { Reducer({}, world.group(0)); }, {"0 parameters"});
  expect_says([&] { Reducer(kSix, nullptr); }, {"process group is null"});
}

// ---- failures

// Every rank's words, for a body that is expected to throw on each.
std::vector<std::string> errors_of(FakeWorld& world, const std::function<void(const Group&)>& body) {
  std::vector<std::string> texts;
  for (const std::exception_ptr& error : world.run_catching(body)) texts.push_back(text_of(error));
  return texts;
}

void expect_mismatch(FakeWorld& world, const std::function<std::vector<ParameterSpec>(int rank)>& specs_of,
                     const std::string& words) {
  const auto texts = errors_of(world, [&](const Group& group) { Reducer(specs_of(group->rank()), group, kTwoEach); });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_TRUE(text.starts_with("Mismatch: Reducer: ")) << text;
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
}

TEST(Reducer, NamesTheFirstParameterThatDiffersAndTheRanks) {
  const auto with = [](int differs, ParameterSpec other) {
    return [=](int rank) {
      auto specs = kSix;
      if (rank == differs) specs[2] = specs[4] = other;
      if (rank == differs) specs[4].name += "'";
      return specs;
    };
  };
  for (const int culprit : {0, 1, 3}) {
    FakeWorld shape(4), name(4), dtype(4);
    const std::string who = "rank " + std::to_string(culprit) + " has ";
    expect_mismatch(shape, with(culprit, {"c", DType::f32, {17}}), who + "'c' float32 [17]");
    expect_mismatch(name, with(culprit, {"cc", DType::f32, {16}}), who + "'cc' float32 [16]");
    expect_mismatch(dtype, with(culprit, {"c", DType::bf16, {16}}), who + "'c' bfloat16 [16]");
  }
  FakeWorld world(4);
  expect_mismatch(world, with(2, {"c", DType::f32, {4, 4}}),
                  "parameter 2: ranks 0, 1 and 3 have 'c' float32 [16]; rank 2 has 'c' float32 [4, 4]");
}

TEST(Reducer, NamesTheRanksWithFewerParameters) {
  FakeWorld world(3);
  expect_mismatch(
      world,
      [](int rank) {
        auto specs = kSix;
        if (rank > 0) specs.pop_back();
        return specs;
      },
      "parameter 5: rank 0 has 'f' float32 [16]; ranks 1 and 2 have only 5 parameters");
}

TEST(Reducer, TellsWhenOptionsDiffer) {
  FakeWorld world(2);
  const auto texts = errors_of(world, [](const Group& group) {
    Reducer reducer(kSix, group, {{.cap_bytes = 1000u + static_cast<std::size_t>(group->rank())}});
  });
  for (const std::string& text : texts) {
    EXPECT_NE(
        text.find("the bucket options: rank 0 has cap_bytes 1000, first_cap_bytes 1048576; rank 1 has cap_bytes 1001"),
        std::string::npos)
        << text;
  }
}

TEST(Reducer, NamesTheRanksThatMakeNone) {
  FakeWorld world(3, std::chrono::milliseconds(300));
  const auto texts = errors_of(world, [](const Group& group) {
    if (group->rank() == 0) Reducer(kSix, group);
  });
  EXPECT_NE(texts[0].find("Timeout: Reducer: the ranks compare their parameters: rank 1 (host fake, pid 101), rank 2 ("
                          "host fake, pid 102) did not come, elapsed"),
            std::string::npos)
      << texts[0];
}

TEST(Reducer, WaitsForNobodyInAGroupThatHasFailed) {
  FakeWorld world(2, std::chrono::minutes(10));
  const auto texts = errors_of(world, [](const Group& group) {
    if (group->rank() == 1) throw InvalidArgument("no model");
    Reducer(kSix, group);
  });
  EXPECT_EQ(texts[0], "PeerLost: rank 1 threw");
}

TEST(Reducer, TellsTwoReducersOfOneGroupApart) {
  FakeWorld world(2);
  world.run([](const Group& group) {
    Reducer one(kSix, group);
    Reducer other({{"x", DType::f32, {3}}}, group);
    other.begin_step();
    one.begin_step();
    fill(other, 0, 1.0f);
    other.mark_ready(0);
    other.finish_step();
    backward(one, 1.0f);
    one.finish_step();
    EXPECT_FLOAT_EQ(first(other, 0), 0.5f * 2 / 1 * 1 / 1);
  });
}

TEST(Reducer, APeerLostInAStepIsWhatEveryLaterCallThrows) {
  FakeWorld world(3, std::chrono::minutes(10));
  const auto texts = errors_of(world, [](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const auto step = [&] {
      reducer.begin_step({.weight = 1});
      backward(reducer, 1.0f);
      reducer.finish_step();
    };
    if (group->rank() == 1) {
      step();
      step();
      reducer.begin_step({.weight = 1});
      fill(reducer, 5, 1.0f);
      reducer.mark_ready(5);
      throw std::runtime_error("out of luck");
    }
    std::string cause;
    try {
      // Rank 1 may be lost while this rank still waits in the step before.
      for (int i = 0; i < 3; ++i) step();
    } catch (const PeerLost& error) {
      cause = error.what();
    }
    EXPECT_TRUE(cause.starts_with("step 2, ") || cause.starts_with("step 1, ")) << cause;
    EXPECT_NE(cause.find(": rank 1 threw"), std::string::npos) << cause;
    const auto again = [&](const std::function<void()>& call) {
      try {
        call();
      } catch (const PeerLost& error) {
        return std::string(error.what());
      }
      return std::string("no PeerLost");
    };
    EXPECT_EQ(again([&] { reducer.finish_step(); }), cause);
    EXPECT_EQ(again([&] { reducer.begin_step(); }), cause);
    EXPECT_EQ(again([&] { reducer.mark_ready(0); }), cause);
    EXPECT_EQ(again([&] { reducer.plan_order(std::vector<int>{0, 1, 2, 3, 4, 5}); }), cause);
  });
  EXPECT_EQ(texts, (std::vector<std::string>{"nothing", "exception: out of luck", "nothing"}));
}

TEST(Reducer, AFailedGroupGoesBeforeMisuse) {
  FakeWorld world(1);
  const Group group = world.group(0);
  Reducer reducer(kSix, group, kTwoEach);
  reducer.begin_step();
  group->abort("rank 7 died");
  EXPECT_THROW(reducer.begin_step(), PeerLost);
  EXPECT_THROW(reducer.finish_step(), PeerLost);
}

TEST(Reducer, AStepWithoutCommunicationNoticesAFailedGroup) {
  FakeWorld world(1);
  const Group group = world.group(0);
  Reducer reducer(kSix, group, kTwoEach);
  group->abort("rank 7 died");
  EXPECT_THROW(reducer.begin_step({.synchronize = false}), PeerLost);
}

TEST(Reducer, OneThatGoesWithinAStepAbortsTheGroup) {
  FakeWorld world(2, std::chrono::minutes(10));
  const auto texts = errors_of(world, [](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 1});
    group->barrier().wait();
    if (group->rank() == 1) {
      for (const int p : {5, 4}) reducer.mark_ready(p);
      return;  // and never finishes
    }
    backward(reducer, 1.0f);
    reducer.finish_step();
  });
  EXPECT_EQ(texts[1], "nothing");
  EXPECT_NE(texts[0].find("PeerLost: step 0, "), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("rank 1 left step 0 before finish_step"), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace lockstep
