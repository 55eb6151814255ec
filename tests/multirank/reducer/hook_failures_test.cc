// SPDX-License-Identifier: Apache-2.0
// Communication hooks of a Reducer that fail, or give back something else than what is wanted.
#include <exception>
#include <stdexcept>
#include <thread>

#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::hook_failures_test {
namespace {

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
  static std::vector<float> memory(40);
  const auto own = std::make_shared<std::vector<float>>(64);
  EXPECT_EQ(failure_of({"mine",
                        [own](const GradBucket&) {
                          return HookedBucket{.work = {}, .finish = [own] { return BufferView(std::span(*own)); }};
                        }}),
            "InvalidArgument: communication hook 'mine' (step 0, bucket 0): the hook gave back 64 float32, but the "
            "bucket has 16 float32; give back as many elements as the bucket has, of the bucket's dtype");
  EXPECT_EQ(failure_of({"mine",
                        [](const GradBucket&) {
                          return HookedBucket{.work = {},
                                              .finish = [] { return BufferView(memory.data(), 16, DType::i32); }};
                        }}),
            "InvalidArgument: communication hook 'mine' (step 0, bucket 0): the hook gave back 16 int32, but the "
            "bucket has 16 float32; give back as many elements as the bucket has, of the bucket's dtype");
  expect_text(failure_of({"mine",
                          [](const GradBucket&) {
                            return HookedBucket{.work = {},
                                                .finish = [] { return BufferView(nullptr, 16, DType::f32); }};
                          }}),
              {"communication hook 'mine' (step 0, bucket 0)", "at address null"});
  expect_text(failure_of({"mine",
                          [](const GradBucket& bucket) {
                            float* const data = static_cast<float*>(bucket.buffer.data) + 1;
                            return HookedBucket{.work = {},
                                                .finish = [data] { return BufferView(data, 16, DType::f32); }};
                          }}),
              {"gave back memory that overlaps the bucket's"});
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
  const auto refused = [](const CommHook& hook) { return failure_of(hook); };
  EXPECT_EQ(
      refused({"", plain_hook().run}),
      "InvalidArgument: communication hook '' has no name; give it a name, which the ranks compare, and a function");
  expect_text(refused({"mine", nullptr}), {"InvalidArgument: communication hook 'mine' has no function"});
}

// Before the first bucket the others may have nothing of a rank's step but its announcement.
TEST(CommHook, AReducerThatGoesWithinAStepEndsTheOthersWait) {
  const auto thrown = thrown_on(2, [](const Group& group) {
    Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = plain_hook()});
    reducer.begin_step();
    if (group->rank() == 1) return;
    reducer.mark_ready(0);
    reducer.finish_step();
  });
  expect_text(text_of(thrown[0]), {"PeerLost: ", "rank 1 left step 0 before finish_step"});
}

TEST(CommHook, AWorldOfOneForgetsAStepThatIsAbandoned) {
  run_ranks(1,
            [](const Group& group) {
              Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = plain_hook()});
              reducer.begin_step({.weight = 4});
              reducer.mark_ready(0);
              reducer.abandon_step("not this one");
              reducer.begin_step({.weight = 2});
              write_gradient(*group, reducer, 0, 6.0);
              reducer.mark_ready(0);
              EXPECT_EQ(reducer.finish_step(), 2);
              EXPECT_EQ(first(group, reducer, 0), 3.0f);
            },
            {.backend = "single"});
}

}  // namespace
}  // namespace lockstep::testing::hook_failures_test
