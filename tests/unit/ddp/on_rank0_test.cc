// SPDX-License-Identifier: Apache-2.0
// Failures of one rank's own that all ranks throw together.
#include "lockstep/ddp/on_rank0.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/comm/arena_agreement.h"
#include "tests/support/error_of.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep::on_rank0_test {
namespace {

using lockstep::testing::thrown_by;
using testing::FakeWorld;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

TEST(OnRank0, ItsResultReachesAll) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    EXPECT_EQ(on_rank0(
                  "load", [&] { return std::to_string(group->rank()) + "\n"; }, *group),
              "0\n");
    EXPECT_EQ(on_rank0(
                  "load", [] { return std::string(); }, *group),
              "");
  });
}

TEST(OnRank0, ItsOwnFailureGoesFirstWhateverBecomesOfTheGroup) {
  FakeWorld world(2);
  const auto errors = world.run_catching([](const Group& group) {
    on_rank0(
        "save",
        [&]() -> std::string {
          group->abort("rank 1 was ended by an exception of its own");
          throw SystemError("write", ENOSPC);
        },
        *group);
  });
  EXPECT_EQ(text_of(errors[0]).find("rank 1 was ended"), std::string::npos) << text_of(errors[0]);
  EXPECT_NE(text_of(errors[0]).find("write: No space left on device"), std::string::npos) << text_of(errors[0]);
}

TEST(OnRank0, WhatIsThrownNeedNotBeAnException) {
  FakeWorld world(2);
  world.run([](const Group& group) {
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
  FakeWorld world(static_cast<int>(problems.size()));
  return world.run_catching([&](const Group& group) {
    const std::string& own = problems[static_cast<std::size_t>(group->rank())];
    comm::agree_on_arena(*group, 64, own, [&](const std::string& text) {
      if (group->rank() == broken) group->abort("rank 2 is lost");
      return all_gather_text(*group, text);
    });
  });
}

int rank_of_cause(const std::exception_ptr& error) {
  const auto thrown = thrown_by<BackendUnavailable>([&] { std::rethrow_exception(error); });
  return !thrown ? -3 : thrown->cause() == nullptr ? -2 : thrown->cause()->rank;
}

TEST(ArenaAgreement, AllHearEveryProblemAndWhoHasNoneKnowsWhoHas) {
  const auto errors = arena_errors({"", "no room", "", "less room"});
  for (const auto& error : errors) {
    EXPECT_EQ(text_of(error),
              "BackendUnavailable: allocate (64 bytes per rank): rank 1 (host fake, pid 101): no room; rank 3 (host "
              "fake, pid 103): less room");
  }
  const int wanted[] = {1, 1, 1, 3};
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(rank_of_cause(errors[r]), wanted[r]) << r;
  for (const auto& error : arena_errors({"", ""})) EXPECT_FALSE(error);
}

TEST(ArenaAgreement, ARanksOwnProblemGoesFirstWhateverBecomesOfTheGroup) {
  const auto errors = arena_errors({"no room", ""}, 0);
  EXPECT_EQ(text_of(errors[0]),
            "BackendUnavailable: allocate (64 bytes per rank): rank 0 (host fake, pid 100): no room");
  EXPECT_EQ(rank_of_cause(errors[0]), 0);
}

}  // namespace
}  // namespace lockstep::on_rank0_test
