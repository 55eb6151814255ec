// SPDX-License-Identifier: Apache-2.0
// Communication hooks of a Reducer, on every backend: what they come to for any partition of a batch.
#include <bit>
#include <cmath>
#include <functional>

#include "tests/multirank/reducer/suite.h"

namespace lockstep::testing::hooks_test {
namespace {

using ReducerHooks = ReducerSuite;

template <typename T>
std::vector<T> step_of(const Group& group, DType dtype, const CommHook& hook) {
  Reducer reducer({{"a", dtype, {40}}, {"b", dtype, {3}}}, group, {.buckets = {.cap_bytes = 0}, .comm_hook = hook});
  const std::int64_t weight = 3 + 2 * group->rank();
  for (int step = 0; step < 2; ++step) {
    reducer.begin_step({.weight = weight});
    for (const int p : {1, 0}) {
      write_gradient<T>(*group, reducer, p, [weight, p](std::int64_t i) {
        return static_cast<double>(weight) * (0.37 * static_cast<double>(i + p + 1) - 3);
      });
      reducer.mark_ready(p);
    }
    reducer.finish_step();
  }
  std::vector<T> values = gradient_of<T>(*group, reducer, 0);
  const std::vector<T> more = gradient_of<T>(*group, reducer, 1);
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

template <typename T>
std::vector<double> numbers(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T value : values) result.push_back(number(value));
  return result;
}

template <typename T>
void expect_dtype(DType dtype) {
  run_suite(3, [dtype](const Group& group) {
    const auto wanted = numbers(step_of<T>(group, dtype, {}));
    const auto plain = numbers(step_of<T>(group, dtype, plain_hook()));
    const auto narrow = numbers(step_of<T>(group, dtype, bf16_compress_hook()));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(narrow[i], wanted[i], 0.01 * std::abs(wanted[i])) << name_of(dtype);
    }
    // A hook's sum of 16 bits is rounded before it is divided; such a bucket travels as it is, and NCCL's own sum of it
    // is rounded more often.
    if (size_of(dtype) > 2) {
      EXPECT_EQ(plain, wanted) << name_of(dtype);
    }
    if (size_of(dtype) > 2 || group->sums_in_rank_order()) {
      EXPECT_EQ(narrow == plain, size_of(dtype) == 2) << name_of(dtype);
    }
  });
}

TEST(CommHook, TakesBucketsOfEachDtype) {
  expect_dtype<float>(DType::f32);
  expect_dtype<double>(DType::f64);
  expect_dtype<bfloat16>(DType::bf16);
  expect_dtype<float16>(DType::f16);
}

// As the CPU's backends do it, bit by bit on all of them.
template <typename Half>
void expect_order_of_ranks(int ranks, const CommHook& hook) {
  constexpr std::int64_t kCount = 1000;
  // Of very different sizes, so that the order of additions shows.
  const auto gradient = [](int rank, std::int64_t i) {
    Generator random(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i));
    return random.normal() * std::exp2(static_cast<float>(random.below(10)));
  };
  // 4 ranks weigh 3 + 5 + 7 + 9: the scale is 32.
  std::int64_t total = 0;
  for (int r = 0; r < ranks; ++r) total += 3 + 2 * r;
  const auto scale = static_cast<float>(std::bit_ceil(static_cast<std::uint64_t>(total)));
  std::vector<float> wanted;
  bool order_shows = false;
  for (std::int64_t i = 0; i < kCount; ++i) {
    std::vector<float> sent;
    for (int r = 0; r < ranks; ++r) sent.push_back(to_float(from_number<Half>(gradient(r, i) / scale)));
    const std::function<float(std::size_t, std::size_t)> tree = [&](std::size_t begin, std::size_t end) {
      if (end - begin == 1) return sent[begin];
      const std::size_t middle = begin + std::bit_ceil(end - begin) / 2;
      return tree(begin, middle) + tree(middle, end);
    };
    const auto rounded = [](float value) { return to_float(from_number<Half>(value)); };
    wanted.push_back(rounded(tree(0, sent.size())) * scale / static_cast<float>(total));
    float stepwise = sent[0];
    for (std::size_t r = 1; r < sent.size(); ++r) stepwise = rounded(stepwise + sent[r]);
    order_shows |= stepwise != rounded(tree(0, sent.size()));
  }
  EXPECT_EQ(order_shows, ranks > 2);
  run_suite(ranks, [&](const Group& group) {
    Reducer reducer({{"w", DType::f32, {kCount}}}, group, {.comm_hook = hook});
    for (int step = 0; step < 4; ++step) {
      reducer.begin_step({.weight = 3 + 2 * group->rank()});
      write_gradient(*group, reducer, 0,
                     [&gradient, rank = group->rank()](std::int64_t i) { return gradient(rank, i); });
      reducer.mark_ready(0);
      reducer.finish_step();
      ASSERT_EQ(gradient_of(*group, reducer, 0), wanted) << hook.name << ", step " << step;
    }
  });
}

TEST_P(ReducerHooks, SixteenBitsAreAddedInFloat32InTheOrderOfTheRanks) {
  expect_order_of_ranks<bfloat16>(GetParam(), bf16_compress_hook());
  expect_order_of_ranks<float16>(GetParam(), fp16_compress_hook());
}

TEST_P(ReducerHooks, TheTraceHasTheBytesThatTravel) {
  run([](const Group& group) {
    const auto bytes_with = [&](const CommHook& hook) {
      Reducer reducer({{"w", DType::f32, {1000}}, {"half", DType::bf16, {64}}}, group, {.comm_hook = hook});
      reducer.begin_step();
      for (const int p : {0, 1}) reducer.mark_unused(p);
      reducer.finish_step();
      reducer.total_weight();
      device_runtime(group->device().kind).synchronize(group->stream(), copy_deadline());
      std::vector<std::size_t> bytes;
      for (const trace::BucketRecord& bucket : reducer.last_step().buckets) bytes.push_back(bucket.bytes);
      return bytes;
    };
    const std::vector<std::size_t> whole{128, 4032}, half{128, 2016};
    EXPECT_EQ(bytes_with({}), whole);
    EXPECT_EQ(bytes_with(plain_hook()), whole);
    EXPECT_EQ(bytes_with(bf16_compress_hook()), half);
    EXPECT_EQ(bytes_with(fp16_compress_hook({.sum = HalfSum::backend})), half);
    EXPECT_EQ(bytes_with(noop_hook()), (std::vector<std::size_t>{0, 0}));
  });
}

TEST(CommHook, AWorldOfOneForgetsAStepThatIsAbandoned) {
  run_suite(1, [](const Group& group) {
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .comm_hook = bf16_compress_hook()});
    reducer.plan_order(kBackward);
    for (int step = 0; step < 4; ++step) {
      reducer.begin_step({.weight = 4});
      for (const int p : {5, 4, 3}) {
        write_gradient(*group, reducer, p, 1);
        reducer.mark_ready(p);
      }
      reducer.abandon_step("not this one");
      EXPECT_EQ(reducer.total_weight(), step == 0 ? 0 : 2) << "of the last one that was finished";
      reducer.begin_step({.weight = 2});
      backward(group, reducer, 2);
      finish(group, reducer, 2);
      EXPECT_EQ(first(group, reducer, 0), 1.0f);
    }
  });
}

TEST_P(ReducerHooks, ASumIsDividedByNothing) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .loss = Loss::sum, .comm_hook = bf16_compress_hook()});
    for (int step = 0; step < 4; ++step) {
      const std::int64_t own = group->rank() == 0 ? 100 : 0;
      reducer.begin_step({.weight = own});
      backward(group, reducer, group->rank() + 1);
      reducer.finish_step();
      const auto ranks = static_cast<float>(group->size());
      EXPECT_EQ(first(group, reducer, 2), 3 * ranks * (ranks + 1) / 2);
      EXPECT_EQ(reducer.total_weight(), own);
    }
  });
}

// The map of used parameters goes past the hook, and nobody's data is zero whatever was written.
TEST_P(ReducerHooks, NobodyWithDataGivesZero) {
  run([](const Group& group) {
    Reducer reducer(kSix, group,
                    {.buckets = kTwoEach.buckets, .track_unused = true, .comm_hook = bf16_compress_hook()});
    for (const std::int64_t weight : {0, 2, 0, 3, 0}) {
      reducer.begin_step({.weight = weight});
      for (const int p : {5, 4}) {
        write_gradient(*group, reducer, p, weight == 0 ? std::nan("") : static_cast<double>(weight));
        reducer.mark_ready(p);
      }
      finish(group, reducer, weight * group->size());
      EXPECT_EQ(first(group, reducer, 5), weight == 0 ? 0.0f : 1.0f);
      EXPECT_EQ(first(group, reducer, 0), 0.0f);
      EXPECT_TRUE(reducer.used_anywhere(5));
      if (weight > 0) {
        EXPECT_FALSE(reducer.used_anywhere(0));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerHooks, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace lockstep::testing::hooks_test
