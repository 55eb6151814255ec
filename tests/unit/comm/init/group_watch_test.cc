// SPDX-License-Identifier: Apache-2.0
// What befalls others, and what it means for a group.
#include "runtime/comm/init/group_watch.h"

#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/single.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep {
namespace {

using lockstep::testing::error_of;
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
  watch.detach();
  group.reset();
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "late"}, .number = 1});
  EXPECT_EQ(watch.position().sequence, 0);
}

TEST(GroupWatch, AStoreOfRankZeroThatHasLeftMayEnd) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  const auto group = single();
  watch.attach(*group);
  watch.take({.kind = MemberEvent::Kind::left, .cause = {.rank = 0}, .number = 3});
  watch.take(of_store(MemberEvent::Kind::store_lost));
  EXPECT_EQ(failure_of(*group), "none");
}

TEST(GroupWatch, AStoreThatIsKnownToBeSilentIsNotAsked) {
  GroupWatch watch(StoreHost::rank_zero, 1);
  watch.take({.kind = MemberEvent::Kind::lost, .cause = {.rank = 2, .text = "the first"}, .number = 1});
  EXPECT_NO_THROW(watch.check_store());
  watch.take(of_store(MemberEvent::Kind::store_silent));
  EXPECT_THROW(watch.check_store(), StoreError);
  watch.take(of_store(MemberEvent::Kind::store_answers));
  EXPECT_NO_THROW(watch.check_store());
}

TEST(GroupWatch, ALaunchersStoreThatIsSilentIsAsked) {
  GroupWatch watch(StoreHost::launcher, 1);
  watch.take(of_store(MemberEvent::Kind::store_silent));
  EXPECT_NO_THROW(watch.check_store()) << "a launcher that is stopped may go on";
  watch.take(of_store(MemberEvent::Kind::store_silent, false));
  EXPECT_THROW(watch.check_store(), StoreError) << "its host has gone";
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

}  // namespace
}  // namespace lockstep
