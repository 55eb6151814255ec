// SPDX-License-Identifier: Apache-2.0
// How groups within a group fail: each by itself, unless a rank ends that several have. Ranks as threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/base/record.h"
#include "tests/conformance/errors.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::subgroup_failures_test {
namespace {

using namespace std::chrono_literals;

// On a device collectives of several groups keep one order on all ranks.
constexpr bool kIsNccl = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

using Group = std::shared_ptr<ProcessGroup>;

void expect_usable(ProcessGroup& group) {
  std::vector<float> x(100, 1.0f);
  group.all_reduce(view(x)).wait();
  EXPECT_EQ(x, std::vector<float>(100, static_cast<float>(group.size())));
}

TEST(SubgroupFailures, ATimeoutIsItsGroupsAlone) {
  const Cause half_times_out{.kind = Cause::Kind::timeout,
                             .rank = 2,
                             .reporter = 3,
                             .sequence = 1,
                             .text = "group 'split 1, color 1' (ranks 2 and 3): "};
  std::latch over(1);
  run_ranks(4, [&](const Group& group) {
    const int rank = group->rank();
    const Group half = group->split(rank / 2);
    if (rank == 3) {
      std::vector<float> x(10);
      const Work work = half->all_reduce(view(x));
      // As the job counts them.
      expect_failure<Timeout>([&] { work.wait(Deadline::after(300ms)); }, half_times_out);
      over.count_down();
    } else if (rank == 2) {
      over.wait();
      expect_failure<Timeout>([&] { half->barrier().wait(); }, half_times_out);
    } else {
      expect_usable(*half);
    }
    expect_usable(*group);
    const Group again = group->split(rank / 2);
    expect_usable(*again);
    if (rank < 2) expect_usable(*half);
  });
}

TEST(SubgroupFailures, TheParentsFailureIsNotItsGroups) {
  std::latch made(4);
  run_ranks(4, [&](const Group& group) {
    const Group half = group->split(group->rank() % 2);
    made.arrive_and_wait();
    if (group->rank() == 2) group->abort("enough");
    expect_failure<PeerLost>([&] { two_barriers(*group); },
                             {.kind = Cause::Kind::aborted, .rank = 2, .reporter = 2, .text = "enough"});
    expect_usable(*half);
    error_of<PeerLost>([&] { group->split(0); });
  });
}

TEST(SubgroupFailures, AFailureOfTheParentEndsTheMakingOfAGroup) {
  run_ranks(3, [&](const Group& group) {
    if (group->rank() == 2) {
      // Asks for what split(0) asks for, as runtime/comm/subgroups.cc writes it, and does not come to the making of it.
      const std::string request = "call split\nranks \ncolor 0\nkey 0\nname \n";
      all_gather_text(*group, fmt::format("records {}\n", escaped(write_texts(std::vector{request}))));
      // One of the others is at it: it has written to the store of the new group.
      EXPECT_TRUE(wait_until([&] {
        const auto keys = group->store().list_keys();
        return std::any_of(keys.begin(), keys.end(), [](const auto& key) { return key.starts_with("groups/1/0/"); });
      }));
      return group->abort("the disk is full");
    }
    expect_text(error_of<PeerLost>([&] { group->split(0, 0, {.timeout = 1h}); }), {"the disk is full"});
  });
}

TEST(SubgroupFailures, WhoLeavesAGroupEarlyIsNamedWithIt) {
  run_ranks(3, [&](const Group& group) {
    Group all = group->split(0, -group->rank());
    std::vector<float> x(100);
    if (group->rank() == 1) {
      all->all_reduce(view(x)).wait();
      all.reset();
    } else {
      // The first may be under way when another rank finds that rank 1 has left.
      expect_failure<PeerLost>(
          [&] {
            all->all_reduce(view(x)).wait();
            all->all_reduce(view(x)).wait();
          },
          {.kind = Cause::Kind::left, .rank = 1, .sequence = 2, .text = "group 'split 1, color 0' (ranks 0-2): "});
    }
    expect_usable(*group);
  });
}

// A rank that throws unwinds each of its groups; the others that it has no part in go on.
TEST(SubgroupFailures, AnExceptionOfOneRankEndsEveryGroupThatHasIt) {
  std::latch made(4);
  std::latch seen(2);
  std::latch over(3);
  const auto thrown = thrown_on(4, [&](const Group& group) {
    const int rank = group->rank();
    const Group half = group->split(rank / 2);
    const Group odd = group->new_group({1, 3, 0});
    made.arrive_and_wait();
    if (rank == 1) throw InvalidArgument("rank 1 has no data");
    if (rank == 2) {
      seen.wait();
    } else {
      const Group& with_rank_1 = rank == 0 ? half : odd;
      const std::string scope =
          rank == 0 ? "group 'split 1, color 0' (ranks 0 and 1): " : "group 'group 2' (ranks 0, 1 and 3): ";
      expect_failure<PeerLost>([&] { with_rank_1->barrier().wait(); },
                               {.kind = Cause::Kind::failed, .rank = 1, .reporter = 1, .text = scope});
      seen.count_down();
    }
    if (rank >= 2) expect_usable(*half);
    over.arrive_and_wait();  // who throws sooner ends the half that another one is in
    group->barrier().wait();
  });
  for (const int rank : {0, 2, 3}) {
    expect_thrown<PeerLost>(thrown[static_cast<std::size_t>(rank)], {.kind = Cause::Kind::failed});
  }
}

// Two ranks, two groups of both: each waits for another one first, and each group has a failure of its own.
TEST(SubgroupFailures, GroupsOfTheSameRanksFailByThemselves) {
  std::latch done(2);
  run_ranks(2, [&](const Group& group) {
    const Group a = group->split(0, 0, {.name = "a"});
    const Group b = group->split(0, 0, {.name = "b"});
    std::vector<float> x(100000, 1.0f);
    std::vector<float> y(100000, 1.0f);
    const bool a_first = group->rank() == 0 || kIsNccl;
    const Work first = (a_first ? a : b)->all_reduce(view(x));
    const Work second = (a_first ? b : a)->all_reduce(view(y));
    second.wait();
    first.wait();
    EXPECT_EQ(x[99999], 2.0f);
    EXPECT_EQ(y[99999], 2.0f);
    done.arrive_and_wait();  // who aborts sooner ends what the other rank is in
    if (group->rank() == 0) a->abort("a has had enough");
    expect_failure<PeerLost>([&] { two_barriers(*a); }, {.kind = Cause::Kind::aborted,
                                                         .rank = 0,
                                                         .reporter = 0,
                                                         .text = "group 'a' (ranks 0 and 1): a has had enough"});
    expect_usable(*b);
    expect_usable(*group);
  });
}

}  // namespace
}  // namespace lockstep::testing::subgroup_failures_test
