// SPDX-License-Identifier: Apache-2.0
// Groups within a group: who is in them, what they are called, and what ranks that ask for different ones are told.
// Ranks as threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string_view>

#include "lockstep/base/error.h"
#include "tests/conformance/errors.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::subgroups_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

constexpr bool kIsShm = std::string_view(LOCKSTEP_TEST_BACKEND) == "shm";
constexpr bool kIsNccl = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

// The sum of the ranks' numbers in the job, which the group adds up.
float sum_of(ProcessGroup& group, int own) {
  std::vector<float> x(100, static_cast<float>(own));
  group.all_reduce(view(x)).wait();
  EXPECT_EQ(x, std::vector<float>(100, x[0]));
  return x[0];
}

std::vector<int> ranks_of_job(const ProcessGroup& group) {
  std::vector<int> ranks;
  for (const rendezvous::Member& member : group.roster()) ranks.push_back(member.rank);
  return ranks;
}

TEST(Subgroups, SplitPutsEachColorsRanksInOrderOfTheirKeys) {
  run_ranks(5, [](const Group& group) {
    // Ranks 0, 2 and 4 backwards; 1 and 3 with equal keys in their old order.
    const int rank = group->rank();
    const Group half = group->split(rank % 2, rank % 2 == 0 ? -rank : 7);
    EXPECT_EQ(half->name(), rank % 2 == 0 ? "split 1, color 0" : "split 1, color 1");
    EXPECT_EQ(ranks_of_job(*half), rank % 2 == 0 ? (std::vector{4, 2, 0}) : (std::vector{1, 3}));
    EXPECT_EQ(half->rank(), rank % 2 == 0 ? 2 - rank / 2 : rank / 2);
    EXPECT_EQ(half->size(), rank % 2 == 0 ? 3 : 2);
    EXPECT_EQ(half->backend(), group->backend());
    EXPECT_EQ(half->timeout(), group->timeout());
    EXPECT_EQ(sum_of(*half, rank), rank % 2 == 0 ? 6 : 4);
    EXPECT_EQ(sum_of(*group, rank), 10) << "beside them the parent goes on";
    // Roots are ranks of the group.
    std::vector<float> x(10, static_cast<float>(rank));
    half->broadcast(view(x), 0).wait();
    EXPECT_EQ(x[0], rank % 2 == 0 ? 4.0f : 1.0f);
  });
}

TEST(Subgroups, ARankWithoutAColorIsInNone) {
  run_ranks(3, [](const Group& group) {
    const Group pair = group->split(group->rank() == 1 ? kNoColor : 3);
    EXPECT_EQ(pair == nullptr, group->rank() == 1);
    if (pair) {
      EXPECT_EQ(sum_of(*pair, group->rank()), 2);
    }
    EXPECT_EQ(group->split(-5), nullptr) << "nobody has one";
    EXPECT_EQ(sum_of(*group, 1), 3);
  });
}

TEST(Subgroups, NewGroupKeepsTheOrderOfItsList) {
  run_ranks(4, [](const Group& group) {
    const Group some = group->new_group({3, 0, 2}, {.name = "tail", .timeout = std::chrono::seconds(50)});
    EXPECT_EQ(some == nullptr, group->rank() == 1);
    const Group alone = group->new_group({1});
    EXPECT_EQ(alone != nullptr, group->rank() == 1);
    if (alone) {
      EXPECT_EQ(alone->name(), "group 2");
      EXPECT_EQ(sum_of(*alone, 7), 7);
      return;
    }
    EXPECT_EQ(some->name(), "tail");
    EXPECT_EQ(some->timeout(), std::chrono::seconds(50));
    EXPECT_EQ(ranks_of_job(*some), (std::vector{3, 0, 2}));
    EXPECT_EQ(some->rank(), group->rank() == 3 ? 0 : 1 + group->rank() / 2);
    std::vector<std::int32_t> all(3);
    std::int32_t own = group->rank();
    some->all_gather(BufferView(std::span(&own, 1)), BufferView(std::span(all))).wait();
    EXPECT_EQ(all, (std::vector<std::int32_t>{3, 0, 2}));
  });
}

TEST(Subgroups, AGroupWithinAGroupHasItsNameAndTheJobsRanks) {
  run_ranks(4, [](const Group& group) {
    if (group->rank() == 0) {
      EXPECT_EQ(group->split(kNoColor), nullptr);
      return;
    }
    const Group three = group->split(1);
    const Group two = three->new_group({1, 2});
    EXPECT_EQ(two == nullptr, group->rank() == 1);
    if (!two) return;
    EXPECT_EQ(two->name(), "split 1, color 1 / group 1");
    EXPECT_EQ(ranks_of_job(*two), (std::vector{2, 3}));
    EXPECT_EQ(sum_of(*two, group->rank()), 5);
    EXPECT_EQ(&two->store() == &three->store(), false);
    if (two->rank() == 0) two->store().set("key", "theirs");
    two->barrier().wait();
    const std::array<std::string, 1> key{"key"};
    EXPECT_TRUE(two->store().check(key));
    EXPECT_FALSE(three->store().check(key));
    EXPECT_FALSE(group->store().check(key));
  });
}

TEST(Subgroups, OfAHostAndOfTheCounterparts) {
  if (kIsShm || kIsNccl) {  // all ranks are on one host
    run_ranks(2, [](const Group& group) {
      const HostGroups groups = group->split_by_host();
      EXPECT_EQ(sum_of(*groups.host, group->rank()), 1);
      EXPECT_EQ(groups.rail->size(), 1);
    });
    return;
  }
  run_ranks(5,
            [](const Group& group) {
              const int rank = group->rank();
              const HostGroups groups = group->split_by_host();
              EXPECT_EQ(groups.host->backend(), "shm") << "what is on one host needs no wire";
              EXPECT_EQ(ranks_of_job(*groups.host), rank < 2 ? (std::vector{0, 1}) : (std::vector{2, 3, 4}));
              EXPECT_EQ(sum_of(*groups.host, rank), rank < 2 ? 1 : 9);
              const std::vector<std::vector<int>> rails{{0, 2}, {1, 3}, {4}};
              const int place = rank < 2 ? rank : rank - 2;
              EXPECT_EQ(groups.rail->name(), "rail " + std::to_string(place));
              EXPECT_EQ(groups.rail->backend(), place == 2 ? "shm" : group->backend()) << "rank 4 is alone";
              EXPECT_EQ(ranks_of_job(*groups.rail), rails[static_cast<std::size_t>(place)]);
              EXPECT_EQ(sum_of(*groups.rail, rank), place == 0 ? 2 : 4);
              // And what shares memory does so in groups of its own.
              const Group pair = groups.host->split(0);
              EXPECT_EQ(pair->backend(), "shm");
            },
            {.hosts = {2, 3}});
}

TEST(Subgroups, MayEndBeforeTheGroupThatMadeThemOrAfterIt) {
  run_ranks(4, [](Group group) {
    const int rank = group->rank();
    Group first = group->split(rank / 2);
    Group second = group->split(rank % 2);
    EXPECT_EQ(sum_of(*first, rank), rank < 2 ? 1 : 5);
    first.reset();
    EXPECT_EQ(sum_of(*group, rank), 6);
    group.reset();
    EXPECT_EQ(sum_of(*second, rank), rank % 2 == 0 ? 2 : 4);
    const Group third = second->split(0, -rank);
    second.reset();
    EXPECT_EQ(sum_of(*third, rank), rank % 2 == 0 ? 2 : 4);
  });
}

// What each rank is told where not all ask for the same; the group goes on afterwards.
void expect_disagreement(const std::string& wanted, const std::function<void(ProcessGroup&)>& call) {
  run_ranks(3, [&](const Group& group) {
    EXPECT_EQ(golden(error_of<Mismatch>([&] { call(*group); })), wanted);
    EXPECT_EQ(sum_of(*group, 1), 3);
    const Group again = group->split(group->rank() / 2);
    EXPECT_EQ(sum_of(*again, 1), group->rank() < 2 ? 2 : 1);
  });
}

TEST(Subgroups, RanksThatAskForDifferentGroupsAreNamed) {
  const std::string first = "groups 1 of this group: rank 0 (...) calls new_group of ranks 0 and 1, but ";
  const std::string same = "; every rank makes the same groups in the same order, also those that it will not be in";
  expect_disagreement(first + "rank 1 (...) calls new_group of ranks 0 and 2" + same, [](ProcessGroup& group) {
    group.new_group({0, group.rank() == 1 ? 2 : 1});
  });
  expect_disagreement(first + "rank 2 (...) calls split" + same, [](ProcessGroup& group) {
    if (group.rank() == 2) {
      group.split(0);
    } else {
      group.new_group({0, 1});
    }
  });
  expect_disagreement(
      "split: rank 0 (...) names the group 'one', but rank 1 (...) names it 'other'; give one name on all of its ranks",
      [](ProcessGroup& group) { group.split(group.rank() / 2, 0, {.name = group.rank() == 1 ? "other" : "one"}); });
}

TEST(Subgroups, ARankThatMakesFewerGroupsIsNamed) {
  const auto thrown = thrown_on(2, [](const Group& group) {
    const Group pair = group->split(0);
    if (group->rank() == 0) group->split(0);
    std::vector<float> x(10);
    group->all_reduce(view(x)).wait();
  });
  // Who is in split() hears of it by that name.
  expect_text(text_of(thrown[0]), {"Mismatch: split: ", "rank 1 (host", "called all_reduce (sum, 10 x float32)",
                                   "split is collective: call it on every rank"});
  expect_text(text_of(thrown[1]), {"Mismatch: ", "rank 0 (host", "called all_gather"});
}

TEST(Subgroups, RefuseWhatIsNoGroup) {
  run_ranks(2, [](const Group& group) {
    expect_text(error_of([&] { group->new_group({}); }), {"new_group on rank ", "an empty list of ranks"});
    expect_text(error_of([&] { group->new_group({0, 2}); }), {"2 is not a rank of this group; list ranks from 0 to 1"});
    expect_text(error_of([&] { group->new_group({-1}); }), {"-1 is not a rank of this group"});
    expect_text(error_of([&] { group->new_group({1, 0, 1}); }), {"rank 1 is listed twice"});
    expect_text(error_of([&] { group->split(0, 0, {.timeout = std::chrono::seconds(0)}); }), {"a timeout of 0"});
    const Group pair = group->new_group({1, 0});
    std::vector<float> x(10);
    expect_text(error_of([&] { return pair->broadcast(view(x), 2); }), {"of 2 (", ", group 'group 1')", "root 2"});
    EXPECT_EQ(sum_of(*pair, 1), 2);
  });
}

}  // namespace
}  // namespace lockstep::testing::subgroups_test
