// SPDX-License-Identifier: Apache-2.0
// What is tested on the CPU alone: when buckets go off, weights in a unit, and communication hooks that fail, or give
// back something else than what is wanted.
#include <functional>
#include <span>
#include <stdexcept>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/trace/step_record.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::shm_test {
namespace {

// An MLP's shapes: about 70,000 parameters, twelve tensors.
std::vector<ParameterSpec> layers() {
  std::vector<ParameterSpec> specs;
  for (int layer = 0; layer < 6; ++layer) {
    specs.push_back({"layer" + std::to_string(layer) + ".weight", DType::f32, {107, 107}});
    specs.push_back({"layer" + std::to_string(layer) + ".bias", DType::f32, {107}});
  }
  return specs;
}
const ReducerOptions kSmallBuckets{{.cap_bytes = 64 << 10, .first_cap_bytes = 32 << 10}};

TEST_P(ReducerSuite, LaunchesBeforeTheLastGradientInEveryStep) {
  run([](const Group& group) {
    Reducer reducer(layers(), group, kSmallBuckets);
    EXPECT_EQ(reducer.last_step().step, -1);
    const std::size_t buckets = reducer.plan().buckets.size();
    ASSERT_GE(buckets, 4u);
    for (int step = 0; step < 20; ++step) {
      reducer.begin_step({.weight = 1});
      backward(group, reducer, 1);
      reducer.finish_step();
      const trace::StepRecord& record = reducer.last_step();
      EXPECT_EQ(record.step, step);
      EXPECT_EQ(record.gradients_ready, 12);
      ASSERT_EQ(record.buckets.size(), buckets);
      EXPECT_LE(record.begin, record.buckets[0].ready);
      int ready = 0;
      for (std::size_t b = 0; b < buckets; ++b) {
        const trace::BucketRecord& bucket = record.buckets[b];
        ready += static_cast<int>(reducer.plan().buckets[b].parameters.size());
        EXPECT_EQ(bucket.gradients_ready, ready);
        const trace::Time times[] = {bucket.ready, bucket.launched, bucket.finished, record.end};
        EXPECT_TRUE(std::ranges::is_sorted(times)) << b;
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

TEST(ReducerShm, CountsWeightsInTheUnitOfRank0) {
  run_suite(3, [](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.weight_unit(), 1);
    if (group->rank() == 0) {
      EXPECT_THROW(reducer.plan_order(kBackward, 0), InvalidArgument);
    }
    reducer.plan_order(kBackward, group->rank() == 0 ? 8 : -1);
    EXPECT_EQ(reducer.weight_unit(), 8);
    // Means 1, 2 and 3 of 8, 4 and 0 rows; then of as many on each rank.
    const std::int64_t uneven[] = {8, 4, 0};
    for (const bool even : {false, true}) {
      const std::int64_t weight = even ? 8 : uneven[group->rank()];
      reducer.begin_step({.weight = weight});
      backward(group, reducer, (group->rank() + 1) * static_cast<double>(weight) / 8);
      finish(group, reducer, even ? 24 : 12);
      EXPECT_FLOAT_EQ(first(group, reducer, 0), even ? 2.0f : 16.0f / 12);
    }
  });
}

// A step of one parameter on `ranks`; the text of what it throws on rank 0.
std::string failure_of(const CommHook& hook, int ranks = 1, const RankThreadsOptions& options = {.backend = "single"}) {
  const auto thrown = thrown_on(
      ranks,
      [&](const Group& group) {
        Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
        reducer.begin_step({.weight = 2});
        reducer.mark_ready(0);
        reducer.finish_step();
      },
      options);
  return text_of(thrown[0]);
}

TEST(CommHook, ThatGivesBackSomethingElseIsToldWhatIsWanted) {
  std::vector<float> memory(64);
  struct Case {
    const char* what;
    std::function<BufferView(const GradBucket&)> given;
  };
  for (const Case& c : {Case{"64 float32", [&](const GradBucket&) { return BufferView(std::span(memory)); }},
                        {"16 int32", [&](const GradBucket&) { return BufferView(memory.data(), 16, DType::i32); }},
                        {"null", [](const GradBucket&) { return BufferView(nullptr, 16, DType::f32); }},
                        {"memory that overlaps the bucket's", [](const GradBucket& bucket) {
                           return BufferView(static_cast<float*>(bucket.buffer.data) + 1, 16, DType::f32);
                         }}}) {
    expect_message("ddp", c.what, failure_of({"mine", [&](const GradBucket& bucket) {
                                                return HookedBucket{.finish = [&, bucket] { return c.given(bucket); }};
                                              }}));
  }
}

TEST(CommHook, MayGiveBackMemoryOfItsOwn) {
  run_ranks(1,
            [](const Group& group) {
              const CommHook hook{
                  "sevens", [](const GradBucket& bucket) {
                    const auto own = std::make_shared<std::vector<float>>(static_cast<std::size_t>(bucket.buffer.count),
                                                                          7.0f / static_cast<float>(bucket.scale));
                    return HookedBucket{.work = {}, .finish = [own] { return BufferView(std::span(*own)); }};
                  }};
              Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
              reducer.begin_step({.weight = 3});
              reducer.mark_ready(0);
              EXPECT_EQ(reducer.finish_step(), 3);
              EXPECT_EQ(first(group, reducer, 0), 7.0f / 3);
            },
            {.backend = "single"});
}

TEST(CommHook, ThatThrowsKeepsWhatItThrewAndFailsEachLaterCall) {
  run_ranks(
      1,
      [](const Group& group) {
        const CommHook hook{"mine", [](const GradBucket&) -> HookedBucket { throw std::out_of_range("rank 70000"); }};
        Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
        reducer.begin_step();
        try {
          reducer.mark_ready(0);
          ADD_FAILURE() << "no error at all";
        } catch (const Error& error) {
          EXPECT_STREQ(error.what(), "communication hook 'mine' (step 0, bucket 0) failed: rank 70000");
          EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
        }
        expect_text(outcome_of([&] { reducer.finish_step(); }), {"communication hook 'mine'"});
      },
      {.backend = "single"});
  expect_text(failure_of({"mine",
                          [](const GradBucket&) {
                            return HookedBucket{.work = {}, .finish = []() -> BufferView {
                                                  throw std::runtime_error("no memory for it");
                                                }};
                          }}),
              {"communication hook 'mine' (step 0, bucket 0) failed: no memory for it"});
}

struct Never final : WorkState {
  bool poll() override { return false; }
  void wait(const Deadline& deadline) override {
    while (!deadline.expired()) std::this_thread::yield();
  }
};
// Returns from each wait at once.
struct Impatient final : WorkState {
  bool poll() override { return false; }
  void wait(const Deadline&) override { std::this_thread::yield(); }
};

TEST(CommHook, ThatNeverCompletesIsATimeoutThatNamesIt) {
  const RankThreadsOptions options{.backend = "single", .timeout = std::chrono::milliseconds(50)};
  const auto hook_of = [](auto state) {
    return CommHook{"mine", [](const GradBucket&) {
                      return HookedBucket{.work = Work(std::make_shared<decltype(state)>()), .finish = {}};
                    }};
  };
  for (const CommHook& hook : {hook_of(Never()), hook_of(Impatient())}) {
    expect_text(failure_of(hook, 1, options), {"Timeout: step 0, bucket 0 of 1 (16 float32, hook 'mine')",
                                               "communication hook 'mine' has not completed"});
  }
}

// The others wait in the collective that a rank's hook leaves out.
TEST(CommHook, ThatLeavesOutItsCollectiveFailsAllRanks) {
  const auto thrown = thrown_on(2, [](const Group& group) {
    const CommHook hook{"mine", [&](const GradBucket& bucket) {
                          if (group->rank() == 1) return HookedBucket{};
                          return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
                        }};
    Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step();
      reducer.mark_ready(0);
      reducer.finish_step();
    }
  });
  // Rank 1's second step begins where rank 0's first bucket is.
  expect_text(text_of(thrown[0]), {"Mismatch: step 0, bucket 0 of 1 (16 float32, hook 'mine')"});
  expect_text(text_of(thrown[1]), {"Mismatch: step 1"});
}

TEST(CommHook, ThatStartsACollectiveTooLateIsTold) {
  const auto thrown = thrown_on(2, [](const Group& group) {
    const CommHook hook{"mine", [](const GradBucket& bucket) {
                          return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer),
                                              .finish = [group = bucket.group, buffer = bucket.buffer] {
                                                group->all_reduce(buffer).wait();
                                                return buffer;
                                              }};
                        }};
    Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
    reducer.begin_step();
    reducer.mark_ready(0);
    reducer.finish_step();
  });
  // The other rank may hear of it first.
  const std::string texts = text_of(thrown[0]) + "\n" + text_of(thrown[1]);
  expect_text(texts, {"InvalidArgument: communication hook 'mine' (step 0, bucket 0): the hook started a collective in "
                      "HookedBucket::finish"});
  for (const auto& error : thrown) EXPECT_NE(text_of(error), "nothing");
}

TEST(CommHook, WithoutNameOrFunctionIsRefused) {
  expect_message("ddp", "no name", failure_of({"", plain_hook().run}));
  expect_message("ddp", "no function", failure_of({"mine", nullptr}));
}

}  // namespace
}  // namespace lockstep::testing::shm_test
