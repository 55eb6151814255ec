// SPDX-License-Identifier: Apache-2.0
// Replicas start equal, stay equal or the run says so, and fail together: what rides with a step, when parameters are
// compared, and what is said then.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/replica_check.h"
#include "runtime/base/record.h"
#include "runtime/comm/arena_agreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "runtime/ddp/equality/divergence_check.h"
#include "tests/support/cause_of.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/thrown_on.h"

namespace lockstep::equality_test {
namespace {

using testing::run_ranks;
using Group = std::shared_ptr<ProcessGroup>;
using testing::text_of;

// A model of two parameters, whose optimizer counts its writes.
class Training {
 public:
  explicit Training(const Group& group, std::int64_t every = 0)
      : group_(group),
        reducer_({{"w", DType::f32, {3}}, {"b", DType::f32, {}}}, group),
        check_(group, every,
               {[this] { return versions_; },
                [this] {
                  return DivergenceCheck::Replica::State{{{"w", std::span(w)}, {"b", std::span(b)}}};
                }}) {
    reducer_.plan_order(std::vector<int>{1, 0});
    before_ = group_->internals().last_sequence();
  }

  // A step is one collective; this returns how many more there were.
  std::int64_t other_collectives() const { return group_->internals().last_sequence() - before_ - step_; }
  void backward(std::int64_t weight = 1, bool synchronize = true) {
    reducer_.begin_step(
        {.weight = weight, .synchronize = synchronize, .note = synchronize ? check_.note(step_) : StepNote{}});
    for (const int parameter : {1, 0}) {
      *reducer_.gradient<float>(parameter) = static_cast<float>(weight);
      reducer_.mark_ready(parameter);
    }
    reducer_.finish_step();
    if (synchronize) check_.judge(step_++, reducer_.noted());
  }
  void optimize() {
    w[0] -= *reducer_.gradient<float>(0);
    b[0] -= *reducer_.gradient<float>(1);
    versions_ += 2;
  }
  void count_a_write() { ++versions_; }
  const NotedStep& noted() const { return reducer_.noted(); }

  std::vector<float> w = {1, 2, 3};
  std::vector<float> b = {4};

 private:
  Group group_;
  std::uint64_t versions_ = 0;
  std::int64_t step_ = 0, before_ = 0;
  Reducer reducer_;
  DivergenceCheck check_;  // asks for the versions at once
};

TEST(StepNote, ComesBackFromAllRanksWithTheStep) {
  run_ranks(3, [](const Group& group) {
    Reducer reducer({{"w", DType::f32, {3}}}, group);
    EXPECT_EQ(reducer.noted().step, -1);
    for (int step = 0; step < 4; ++step) {
      for (const bool synchronize : {false, true}) {
        // Without data a rank has its say like the others.
        reducer.begin_step({.weight = group->rank() == 2 ? 0 : 1,
                            .synchronize = synchronize,
                            .note = {.versions = step == 1 ? group->rank() : 7, .digest = step / 2}});
        reducer.finish_step();
      }
      EXPECT_EQ(reducer.noted().step, step);
      EXPECT_EQ(reducer.noted().of_all.versions, step != 1);
      EXPECT_EQ(reducer.noted().of_all.digest, 1);
    }
  });
}

TEST(Divergence, IsNamedOnAllRanks) {
  struct Case {
    int ranks;
    std::int64_t every;
    std::function<void(Training& training, int rank, int step)> update;
    int rank;  // of two nobody knows which one is wrong
    std::int64_t step;
    const char* text;
  };
  const auto leaves_out_step_3 = [](Training& training, int rank, int step) {
    if (step != 3 || rank != 1) training.optimize();
  };
  const Case cases[] = {
      {3, 0, leaves_out_step_3, 1, 4,
       "the replicas are not equal any more; they came apart before step 4: 2 of 2 parameters differ, the first is "
       "parameter 0, 'w': rank 1 differs from the others"},
      {2, 0, leaves_out_step_3, -1, 4, "'w': ranks 0 and 1 differ"},
      // A write that nobody counts, found by the next digest.
      {3, 5,
       [](Training& training, int rank, int step) {
         training.optimize();
         if (step == 6 && rank == 2) training.b[0] += 1;
       },
       2, 10,
       "they came apart between step 5 and step 10: 1 of 2 parameters differ, the first is parameter 1, 'b': rank 2 "
       "differs from the others"},
      // After counts that differ for ever over equal values.
      {2, 0,
       [](Training& training, int rank, int step) {
         if (step != 6 || rank == 1) training.optimize();
         if (step == 1 && rank == 0) training.count_a_write();
       },
       -1, 7, "between step 2 and step 7"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto thrown = testing::thrown_on(c.ranks, [&](const Group& group) {
      Training training(group, c.every);
      for (int step = 0; step < 20; ++step) {
        training.backward();
        c.update(training, group->rank(), step);
      }
    });
    for (const auto& error : thrown) {
      ASSERT_NE(error, nullptr);
      const Cause cause = testing::cause_of<Mismatch>([&] { std::rethrow_exception(error); });
      testing::expect_cause(cause, {.kind = Cause::Kind::mismatch, .step = c.step, .text = c.text});
      EXPECT_EQ(cause.rank, c.rank);
      EXPECT_EQ(testing::text_of(error), testing::text_of(thrown[0]));
    }
  }
}

TEST(Divergence, EqualValuesAreNoErrorAndAreComparedOnce) {
  run_ranks(3, [](const Group& group) {
    Training training(group);
    for (int step = 0; step < 10; ++step) {
      if (step == 4 && group->rank() == 0) training.count_a_write();
      training.backward();
      EXPECT_EQ(training.noted().of_all.versions, step != 4) << step;
      training.optimize();
    }
    EXPECT_EQ(training.other_collectives(), 1);
  });
}

TEST(Divergence, ADigestIsNoCollectiveOfItsOwn) {
  run_ranks(2, [](const Group& group) {
    Training training(group, 2);
    for (int step = 0; step < 9; ++step) {
      training.backward();
      training.optimize();
    }
    EXPECT_EQ(training.other_collectives(), 0);
  });
}

TEST(Divergence, RanksWithOtherIntervalsOrNoDataOrMicroBatchesGoOn) {
  run_ranks(3, [](const Group& group) {
    Training training(group, 2 + group->rank());
    for (int step = 0; step < 15; ++step) {
      training.backward(group->rank(), false);
      training.backward(group->rank() == 0 ? 0 : step % 3);
      training.optimize();
    }
  });
}

TEST(Divergence, AWorldOfOneHasNothingToCompare) {
  run_ranks(1, [](const Group& group) {
    Training training(group, 1);
    for (int step = 0; step < 3; ++step) {
      training.backward();
      training.count_a_write();
    }
    EXPECT_EQ(training.other_collectives(), 0);
    EXPECT_THROW(Training(group, -1), InvalidArgument);
  });
}

TEST(BroadcastParameters, GivesEveryRankTheRootsBytesCoalesced) {
  run_ranks(3, [](const Group& group) {
    // Small ones of every dtype, an empty one, a large one in between, and more small ones than one stage holds.
    const auto value = [](int rank, std::size_t i) { return static_cast<float>(rank * 1000) + static_cast<float>(i); };
    const int rank = group->rank();
    std::vector<std::vector<float>> floats;
    for (std::size_t i = 0; i < 40; ++i) floats.emplace_back(50'000, value(rank, i));
    std::vector<double> doubles(7, value(rank, 1));
    std::vector<std::uint8_t> bytes(3, static_cast<std::uint8_t>(rank));
    std::vector<float> large(400'000), empty;
    std::iota(large.begin(), large.end(), value(rank, 0));

    std::vector<BufferView> buffers{std::span(doubles), std::span(bytes), std::span(empty), std::span(large)};
    for (auto& it : floats) buffers.emplace_back(std::span(it));
    const std::int64_t before = group->internals().last_sequence();
    broadcast_parameters(*group, buffers, 1);
    // 8 MB of small ones in two stages, and the large one by itself.
    EXPECT_EQ(group->internals().last_sequence(), before + 3);

    for (std::size_t i = 0; i < floats.size(); ++i) EXPECT_EQ(floats[i], std::vector<float>(50'000, value(1, i))) << i;
    EXPECT_EQ(doubles, std::vector<double>(7, 1001.0));
    EXPECT_EQ(bytes, (std::vector<std::uint8_t>{1, 1, 1}));
    EXPECT_EQ(large[399'999], value(1, 0) + 399'999);
  });
}

TEST(BroadcastParameters, RefusesBadInputAndIsNothingAlone) {
  run_ranks(1, [](const Group& group) {
    std::array<float, 4> values{1, 2, 3, 4};
    std::array<BufferView, 1> buffers{std::span<float>(values)};
    EXPECT_THROW(broadcast_parameters(*group, buffers, 1), InvalidArgument);
    EXPECT_THROW(broadcast_parameters(*group, buffers, -1), InvalidArgument);
    broadcast_parameters(*group, buffers);
    EXPECT_EQ(group->internals().last_sequence(), 0);
    buffers[0].device = {DeviceKind::cuda, 0};
    EXPECT_THROW(broadcast_parameters(*group, buffers), InvalidArgument);
  });
}

struct Replica {
  std::vector<float> w = {1, 2, 3};
  std::vector<float> b = {4};
  std::vector<double> scale = {0.5};

  std::vector<NamedBuffer> buffers() {
    return {{"w", std::span<float>(w)}, {"b", std::span<float>(b)}, {"scale", std::span<double>(scale)}};
  }
};

TEST(ReplicaCheck, ReturnsOneHashWhileAllAreEqual) {
  run_ranks(4, [&](const Group& group) {
    Replica replica;
    EXPECT_EQ(check_replicas(*group, replica.buffers()), hash_replica(Replica().buffers()));
    EXPECT_EQ(group->internals().last_sequence(), 1);
  });
}

TEST(ReplicaCheck, NamesWhoDiffersAndTheFirstParameter) {
  struct Case {
    int ranks, culprit;
    std::function<void(Replica& replica, std::vector<NamedBuffer>& buffers)> change;
    const char* text;
  };
  const auto change_two = [](Replica& replica, auto&) {
    replica.b[0] = std::nextafterf(4.0f, 5.0f);
    replica.scale[0] = 0.25;
  };
  const Case cases[] = {
      {4, 0, change_two, "2 of 3 parameters differ, the first is parameter 1, 'b': rank 0 differs from the others"},
      {4, 3, change_two, "2 of 3 parameters differ, the first is parameter 1, 'b': rank 3 differs from the others"},
      {2, 1, [](Replica& replica, auto&) { replica.w[2] = 0; }, "'w': ranks 0 and 1 differ"},
      {3, 1, [](Replica&, auto& buffers) { buffers.pop_back(); },
       "rank 1 differs from the others: the ranks passed different numbers of parameters, by rank 3, 2, 3"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto thrown = testing::thrown_on(c.ranks, [&](const Group& group) {
      Replica replica;
      auto buffers = replica.buffers();
      if (group->rank() == c.culprit) c.change(replica, buffers);
      check_replicas(*group, buffers);
    });
    for (const auto& error : thrown) {
      EXPECT_EQ(testing::text_of(error), testing::text_of(thrown[0]));
      testing::expect_text(testing::text_of(error), {c.text});
    }
  }
}

TEST(ReplicaCheck, HashSeesNamesDtypesAndBits) {
  Replica a, negative_zero, zero;
  const std::uint64_t hash = hash_replica(a.buffers());
  zero.w[0] = 0.0f;
  negative_zero.w[0] = -0.0f;
  EXPECT_NE(hash_replica(zero.buffers()), hash_replica(negative_zero.buffers()));
  auto renamed = a.buffers(), retyped = a.buffers(), swapped = a.buffers();
  renamed[0].name = "v";
  EXPECT_NE(hash_replica(renamed), hash);
  retyped[0].value.dtype = DType::i32;
  EXPECT_NE(hash_replica(retyped), hash);
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(hash_replica(swapped), hash);
}

// Rank 1 is played by hand: it has told what it has, and is slow to read what rank 0 has.
TEST(CompareParameters, RankZeroStaysUntilTheOthersHaveReadTheDifference) {
  std::atomic<bool> thrown = false;
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 0) {
      const std::vector<ParameterSpec> specs{{"w", DType::f32, {3}}};
      EXPECT_THROW(compare_parameters(*group, specs, {}), Mismatch);
      thrown = true;
      return;
    }
    all_gather_text(*group, "another hash");
    all_gather_text(*group, write_texts(std::vector<std::string>{"w"}));
    EXPECT_FALSE(thrown) << "rank 0 is gone";
    group->barrier().wait();
  });
}

TEST(FirstDifference, IsTheFirstOfAll) {
  const std::vector<ComparedOption> options{{"the options", ""}};
  const std::vector<std::vector<std::string>> two{{"o", "w"}, {"p", "v"}};
  EXPECT_EQ(first_difference(options, std::vector<std::vector<std::string>>{{"o", "w"}, {"o", "w"}}), "");
  EXPECT_EQ(
      first_difference(options, std::vector<std::vector<std::string>>{{"o", "w", "b"}, {"o", "w", "c"}, {"o", "v"}}),
      "parameter 0: ranks 0 and 1 have w; rank 2 has v");
  EXPECT_EQ(first_difference(options, two), "the options: rank 0 has o; rank 1 has p");
  EXPECT_EQ(first_difference({}, two), "parameter 0: rank 0 has o; rank 1 has p");
}

TEST(OnRank0, ItsOwnFailureGoesFirstWhateverBecomesOfTheGroup) {
  const auto thrown = testing::thrown_on(2, [](const Group& group) {
    on_rank0(
        "save",
        [&]() -> std::string {
          group->abort("rank 1 was ended by an exception of its own");
          throw SystemError("write", ENOSPC);
        },
        *group);
  });
  EXPECT_EQ(text_of(thrown[0]), "exception: write: No space left on device (errno 28)");
}

TEST(OnRank0, WhatIsThrownNeedNotBeAnException) {
  testing::run_ranks(2, [](const Group& group) {
    const auto action = []() -> std::string { throw 7; };
    if (group->rank() == 0) {
      EXPECT_THROW(on_rank0("save", action, *group), int);
    } else {
      EXPECT_THROW(on_rank0("save", action, *group), PeerLost);
    }
    group->barrier().wait();  // it goes on
  });
}

// What each rank throws of `problems`; the exchange fails on rank `broken`.
std::vector<std::exception_ptr> arena_errors(const std::vector<std::string>& problems, int broken = -1) {
  return testing::thrown_on(static_cast<int>(problems.size()), [&](const Group& group) {
    const std::string& own = problems[static_cast<std::size_t>(group->rank())];
    comm::agree_on_arena(*group, 64, own, [&](const std::string& text) {
      if (group->rank() == broken) group->abort("rank 2 is lost");
      return all_gather_text(*group, text);
    });
  });
}

TEST(ArenaAgreement, AllHearEveryProblemAndWhoHasNoneKnowsWhoHas) {
  const auto thrown = arena_errors({"", "no room", "", "less room"});
  const int wanted[] = {1, 1, 1, 3};
  for (std::size_t r = 0; r < 4; ++r) {
    testing::expect_message("comm", "two of four ranks have no memory", text_of(thrown[r]));
    testing::expect_thrown<BackendUnavailable>(thrown[r], {.kind = Cause::Kind::failed, .rank = wanted[r]});
  }
  for (const auto& error : arena_errors({"", ""})) EXPECT_FALSE(error);
}

TEST(ArenaAgreement, ARanksOwnProblemGoesFirstWhateverBecomesOfTheGroup) {
  const auto thrown = arena_errors({"no room", ""}, 0);
  testing::expect_message("comm", "rank 0 can't tell the others that it has no memory", text_of(thrown[0]));
  ASSERT_NE(thrown[0], nullptr);
  EXPECT_EQ(testing::cause_of<BackendUnavailable>([&] { std::rethrow_exception(thrown[0]); }).rank, 0);
}

}  // namespace
}  // namespace lockstep::equality_test
