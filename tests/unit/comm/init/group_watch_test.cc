// SPDX-License-Identifier: Apache-2.0
// What befalls others, and what it means for a group.
#include "runtime/comm/init/group_watch.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/process_group_base.h"
#include "runtime/comm/single.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::group_watch_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using membership::MemberEvent;
using What = Consequence::Kind;

MemberEvent of_store(MemberEvent::Kind kind, bool host_answers = true) {
  return {.kind = kind,
          .cause = {.text = "stopped answering"},
          .address = "10.0.0.7:29400",
          .host = membership::ProcessInfo{.host = "n1", .pid = 100, .boot_id = "b", .pid_namespace = "1"},
          .host_answers = host_answers};
}

TEST(ConsequenceOf, ALossASilenceAndAFailureOfARank) {
  for (const auto kind : {MemberEvent::Kind::lost, MemberEvent::Kind::silent, MemberEvent::Kind::failed}) {
    const auto consequence = consequence_of({.kind = kind, .cause = {.rank = 2, .text = "rank 2 ..."}, .number = 1},
                                            StoreHost::rank_zero, 1, false);
    EXPECT_EQ(consequence.kind, What::fail);
    EXPECT_EQ(consequence.cause.rank, 2);
    EXPECT_EQ(consequence.cause.text, "rank 2 ...");
  }
}

TEST(ConsequenceOf, AGoodbyeIsNone) {
  EXPECT_EQ(
      consequence_of({.kind = MemberEvent::Kind::left, .cause = {.rank = 2}}, StoreHost::rank_zero, 1, false).kind,
      What::none);
}

TEST(ConsequenceOf, OnesOwnSilenceKeepsItsCause) {
  const auto consequence = consequence_of(
      {.kind = MemberEvent::Kind::silent, .cause = {.rank = 1, .text = "rank 1 ..."}}, StoreHost::rank_zero, 1, false);
  EXPECT_EQ(consequence.kind, What::fail);
  EXPECT_EQ(consequence.cause.text, "rank 1 ...");
}

TEST(ConsequenceOf, AStoreThatRankZeroHosts) {
  for (const auto kind : {MemberEvent::Kind::store_lost, MemberEvent::Kind::store_silent}) {
    const auto consequence = consequence_of(of_store(kind), StoreHost::rank_zero, 1, false);
    EXPECT_EQ(consequence.kind, What::fail);
    EXPECT_EQ(consequence.cause.rank, 0);
    EXPECT_EQ(consequence.cause.text,
              "rank 0 (host n1, pid 100), which hosts the store at 10.0.0.7:29400, stopped answering");
    EXPECT_EQ(consequence_of(of_store(kind), StoreHost::rank_zero, 1, true).kind, What::none) << "it has left";
    EXPECT_EQ(consequence_of(of_store(kind), StoreHost::rank_zero, 0, false).kind, What::none) << "its own";
  }
}

TEST(ConsequenceOf, ARelayInTheLauncherOfThisHost) {
  auto event = of_store(MemberEvent::Kind::store_silent);
  event.is_of_relay = true;
  const auto stopped = consequence_of(event, StoreHost::launcher, 1, false);
  EXPECT_EQ(stopped.kind, What::warn) << "a launcher that is stopped harms nobody";
  EXPECT_EQ(stopped.cause.text,
            "the launcher of this host (host n1, pid 100), which has this rank's membership at 10.0.0.7:29400, stopped "
            "answering; the job continues, but until it answers again the loss of a rank may be found late");
}

TEST(ConsequenceOf, AStoreThatALauncherHosts) {
  const auto lost = consequence_of(of_store(MemberEvent::Kind::store_lost), StoreHost::launcher, 1, true);
  EXPECT_EQ(lost.kind, What::fail);
  EXPECT_EQ(lost.cause.rank, -1);
  EXPECT_EQ(lost.cause.text,
            "the launcher (host n1, pid 100), which hosts the store at 10.0.0.7:29400, stopped answering");
  EXPECT_EQ(consequence_of(of_store(MemberEvent::Kind::store_silent, false), StoreHost::launcher, 1, false).kind,
            What::fail);
  EXPECT_EQ(consequence_of(of_store(MemberEvent::Kind::store_silent, true), StoreHost::launcher, 1, false).kind,
            What::warn)
      << "a launcher that is stopped harms nobody";
  EXPECT_EQ(consequence_of(of_store(MemberEvent::Kind::store_answers), StoreHost::launcher, 1, false).kind, What::warn);
}

TEST(ConsequenceOf, AHostOfTheStoreThatDidNotSayWhoItIs) {
  MemberEvent event = of_store(MemberEvent::Kind::store_lost);
  event.host.reset();
  EXPECT_EQ(consequence_of(event, StoreHost::launcher, 1, false).cause.text,
            "the launcher (a process that did not say), which hosts the store at 10.0.0.7:29400, stopped answering");
}

std::shared_ptr<ProcessGroup> single() {
  GroupContext context;
  context.roster.resize(1);
  context.store = std::make_shared<store::HashStore>();
  return single_backend().create(context, Deadline::never());
}

std::string failure_of(ProcessGroup& group) {
  try {
    group.barrier().wait();
    return "none";
  } catch (const PeerLost& error) {
    return error.what();
  }
}

TEST(GroupWatch, FailsTheGroupWithTheFirstCause) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  const auto group = single();
  watch.attach(*group);
  EXPECT_EQ(failure_of(*group), "none");
  watch.take({.kind = MemberEvent::Kind::left, .cause = {.rank = 2}});
  EXPECT_EQ(failure_of(*group), "none");
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "the first"}, .number = 1});
  watch.take({.kind = MemberEvent::Kind::failed, .cause = {.rank = 0, .text = "the second"}, .number = 2});
  EXPECT_EQ(failure_of(*group), "the first");
}

TEST(GroupWatch, WhatCameBeforeTheGroupFailsItAsSoonAsItIsThere) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "the first"}, .number = 1});
  watch.take(of_store(MemberEvent::Kind::store_lost));
  const auto group = single();
  watch.attach(*group);
  EXPECT_EQ(failure_of(*group), "the first");
}

TEST(GroupWatch, AGroupThatIsGoneIsLeftAlone) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  auto group = single();
  watch.attach(*group);
  watch.detach(*group);
  group.reset();
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "late"}, .number = 1});
  EXPECT_EQ(watch.position().sequence, 0);
}

// Of ranks 1 and 3 of a job of four, as a group of its own.
std::shared_ptr<ProcessGroup> part_of_job() {
  GroupContext context;
  for (const int rank : {1, 3}) context.roster.push_back({rank, 0, 100 + rank, "n1", "boot", "net", "odd"});
  context.store = std::make_shared<store::HashStore>();
  return single_backend().create(context, Deadline::never());
}

TEST(GroupWatch, AGroupWithinTheJobsFailsWithItsOwnRanks) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto job = single();
  const auto part = part_of_job();
  watch.attach(*job);
  watch.attach(*part);
  const auto lose = [&](int rank, const std::string& text) {
    watch.take({.kind = MemberEvent::Kind::lost,
                .cause = {.kind = Cause::Kind::lost, .rank = rank, .text = text},
                .number = 1});
  };
  lose(2, "rank 2 is lost");
  EXPECT_EQ(failure_of(*job), "rank 2 is lost");
  EXPECT_EQ(failure_of(*part), "none");
  const auto later = part_of_job();
  watch.attach(*later);
  lose(3, "rank 3 is lost");
  EXPECT_EQ(failure_of(*job), "rank 2 is lost");
  EXPECT_EQ(failure_of(*part), "group 'odd' (ranks 1 and 3): rank 3 is lost");
  EXPECT_EQ(failure_of(*later), "group 'odd' (ranks 1 and 3): rank 3 is lost");
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check(); }), "rank 2 is lost");
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check(&part->roster()); }), "rank 3 is lost");
}

// What ended the job's group is no end of a rank.
TEST(GroupWatch, AGroupWithinTheJobsOutlivesItsTimeoutsAndMismatches) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto part = part_of_job();
  watch.attach(*part);
  for (const auto kind : {Cause::Kind::timeout, Cause::Kind::mismatch, Cause::Kind::left, Cause::Kind::aborted}) {
    watch.take({.kind = MemberEvent::Kind::failed, .cause = {.kind = kind, .rank = 3, .text = "of the job"}});
  }
  EXPECT_EQ(failure_of(*part), "none");
  EXPECT_NO_THROW(watch.check(&part->roster()));
  watch.take({.kind = MemberEvent::Kind::failed, .cause = {.kind = Cause::Kind::failed, .rank = 3, .text = "threw"}});
  EXPECT_EQ(failure_of(*part), "group 'odd' (ranks 1 and 3): threw");
}

TEST(GroupWatch, TheLossOfTheStoreFailsEveryGroup) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto part = part_of_job();
  watch.attach(*part);
  watch.take(of_store(MemberEvent::Kind::store_lost));
  expect_text(failure_of(*part), {"group 'odd' (ranks 1 and 3): the launcher (host n1, pid 100), which hosts"});
}

// The job's group says how far the rank is; the step may be another's.
TEST(GroupWatch, TellsTheStepOfWhicheverGroupTrains) {
  GroupWatch watch(StoreHost::launcher, 1);
  const auto job = single();
  auto part = part_of_job();
  watch.attach(*job);
  watch.attach(*part);
  part->internals().set_step(17);
  job->barrier().wait();
  EXPECT_EQ(watch.position().step, 17);
  EXPECT_EQ(watch.position().sequence, job->internals().last_sequence());
  watch.detach(*part);
  part.reset();
  EXPECT_EQ(watch.position().step, 17) << "what it was at";
}

TEST(GroupWatch, AStoreOfRankZeroThatHasLeftMayEnd) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  const auto group = single();
  watch.attach(*group);
  watch.take({.kind = MemberEvent::Kind::left, .cause = {.rank = 0}, .number = 3});
  watch.take(of_store(MemberEvent::Kind::store_lost));
  EXPECT_EQ(failure_of(*group), "none");
}

// A connection of this rank's may see the store's end before the link does, which knows why.
TEST(GroupWatch, WhoHasLostTheStoreWaitsForWhatTheLinkKnows) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  EXPECT_NO_THROW(watch.check_after_loss()) << "there is no link to wait for";
  watch.begin({});
  std::thread link([&] {
    watch.take(
        {.kind = MemberEvent::Kind::failed, .cause = {.rank = 0, .text = "rank 0 has no disk left"}, .number = 1});
  });
  EXPECT_EQ(error_of<PeerLost>([&] { watch.check_after_loss(); }), "rank 0 has no disk left");
  link.join();
}

TEST(GroupWatch, AStoreThatMayEndIsNoLossOfARank) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.begin({});
  std::thread link([&] {
    watch.take({.kind = MemberEvent::Kind::left, .cause = {.rank = 0}, .number = 3});
    watch.take(of_store(MemberEvent::Kind::store_lost));
  });
  EXPECT_NO_THROW(watch.check_after_loss());
  link.join();
}

// A group that has no memory, or no descriptor, for its own failure.
class UnableGroup : public comm::ProcessGroupBase {
 public:
  using ProcessGroupBase::ProcessGroupBase;
  std::string_view backend() const override { return "unable"; }
  Arena allocate(std::size_t) override { return {}; }
  void progress() override {}
  void abort(const std::string&) override { throw std::bad_alloc(); }

 private:
  Work start(comm::CollectiveArgs) override { return {}; }
  Work start_message(const comm::P2pOp&) override { return {}; }
};

TEST(GroupWatch, AGroupThatCantBeFailedKeepsNoOtherFromItsFailureAndEnds) {
  GroupContext context;
  context.roster.resize(1);
  UnableGroup unable(context);
  const auto group = single();
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.attach(unable);
  watch.attach(*group);
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "rank 2 is lost"}, .number = 1});
  EXPECT_EQ(failure_of(*group), "rank 2 is lost");
  watch.detach(unable);
}

}  // namespace
}  // namespace lockstep::group_watch_test
