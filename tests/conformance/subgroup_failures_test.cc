// SPDX-License-Identifier: Apache-2.0
// How groups within a group fail: each by itself, unless a rank ends that several have. Ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <latch>
#include <string_view>

#include "lockstep/base/error.h"
#include "tests/conformance/errors.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing {
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
  std::latch over(1);
  run_ranks(4, [&](const Group& group) {
    const int rank = group->rank();
    const Group half = group->split(rank / 2);
    if (rank == 3) {
      std::vector<float> x(10);
      const Work work = half->all_reduce(view(x));
      const auto error = thrown_by<Timeout>([&] { work.wait(Deadline::after(300ms)); });
      expect_text(error->what(), {"group 'split 1, color 1' (ranks 2 and 3): all_reduce 1", "on rank 3 (host",
                                  "timed out", "not arrived: rank 2 ("});
      // As the job counts them.
      expect_cause(*error, {.kind = Cause::Kind::timeout, .rank = 2, .reporter = 3});
      over.count_down();
    } else if (rank == 2) {
      over.wait();
      expect_text(error_of<Timeout>([&] { half->barrier().wait(); }), {"group 'split 1, color 1' (ranks 2 and 3): "});
    } else {
      expect_usable(*half);
    }
    expect_usable(*group);
    const Group again = group->split(rank / 2);
    expect_usable(*again);
    if (rank < 2) expect_usable(*half);
  });
}

TEST(SubgroupFailures, AMismatchIsItsGroupsAlone) {
  std::array<std::string, 4> texts;
  run_ranks(4, [&](const Group& group) {
    const int rank = group->rank();
    const Group half = group->new_group({3, 1, 0}, {.name = "three"});
    std::vector<float> x(10);
    if (half) {
      texts[static_cast<std::size_t>(rank)] = error_of<Mismatch>([&] {
        if (rank == 1) half->broadcast(view(x), 1).wait();
        half->all_reduce(view(x)).wait();
      });
    }
    expect_usable(*group);
  });
  for (const int rank : {0, 3}) EXPECT_EQ(texts[static_cast<std::size_t>(rank)], texts[1]);
  expect_text(texts[1], {"group 'three' (ranks 0, 1 and 3): collective 1", "rank 1 (host",
                         "broadcast (from rank 1, 10 x float32)"});
}

TEST(SubgroupFailures, AnAbortIsItsGroupsAlone) {
  std::latch made(3);
  run_ranks(3, [&](const Group& group) {
    const Group all = group->split(0, 0, {.name = "all"});
    made.arrive_and_wait();
    if (group->rank() == 1) all->abort("the disk is full");
    EXPECT_EQ(error_of<PeerLost>([&] {
                all->barrier().wait();
                all->barrier().wait();
              }),
              "group 'all' (ranks 0-2): the disk is full");
    expect_usable(*group);
  });
}

TEST(SubgroupFailures, TheParentsFailureIsNotItsGroups) {
  std::latch made(4);
  run_ranks(4, [&](const Group& group) {
    const Group half = group->split(group->rank() % 2);
    made.arrive_and_wait();
    if (group->rank() == 2) group->abort("enough");
    EXPECT_EQ(error_of<PeerLost>([&] {
                group->barrier().wait();
                group->barrier().wait();
              }),
              "enough");
    expect_usable(*half);
    error_of<PeerLost>([&] { group->split(0); });
  });
}

TEST(SubgroupFailures, AFailureOfTheParentEndsTheMakingOfAGroup) {
  run_ranks(3, [&](const Group& group) {
    if (group->rank() == 2) {
      // Asks for what split(0) asks for, as runtime/comm/subgroups.cc writes it, and does not come to the making of it.
      all_gather_text(*group, "5:split0:1:01:00:");
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
      expect_text(error_of<PeerLost>([&] {
                    all->all_reduce(view(x)).wait();
                    all->all_reduce(view(x)).wait();
                  }),
                  {"group 'split 1, color 0' (ranks 0-2): rank 1 (host", "left after collective 1", "all_reduce 2"});
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
      const std::string_view scope = rank == 0 ? "group 'split 1, color 0' (ranks 0 and 1): rank 1 (host"
                                               : "group 'group 2' (ranks 0, 1 and 3): rank 1 (host";
      expect_text(error_of<PeerLost>([&] { with_rank_1->barrier().wait(); }), {scope, "ended by an exception"});
      seen.count_down();
    }
    if (rank >= 2) expect_usable(*half);
    over.arrive_and_wait();  // who throws sooner ends the half that another one is in
    group->barrier().wait();
  });
  for (const int rank : {0, 2, 3}) {
    expect_text(text_of(thrown[static_cast<std::size_t>(rank)]), {"PeerLost: rank "});
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
    EXPECT_EQ(error_of<PeerLost>([&] {
                a->barrier().wait();
                a->barrier().wait();
              }),
              "group 'a' (ranks 0 and 1): a has had enough");
    expect_usable(*b);
  });
}

}  // namespace
}  // namespace lockstep::testing
