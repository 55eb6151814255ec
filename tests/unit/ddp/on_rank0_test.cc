// SPDX-License-Identifier: Apache-2.0
// Failures of one rank's own that all ranks throw together.
#include "lockstep/ddp/on_rank0.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/arena_agreement.h"
#include "tests/support/cause_of.h"
#include "tests/support/messages.h"
#include "tests/support/thrown_on.h"

namespace lockstep::on_rank0_test {
namespace {

using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

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
}  // namespace lockstep::on_rank0_test
