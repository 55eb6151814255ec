// SPDX-License-Identifier: Apache-2.0
// Links of ranks over a relay and a launcher's link to a real store: what a rank hears, and by how many connections.
#include "runtime/membership/member_relay.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/secret.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/cause_of.h"
#include "tests/unit/membership/member_events.h"

namespace lockstep::membership::member_relay_test {
namespace {

using lockstep::testing::expect_cause;
using lockstep::testing::thrown_by;
using Kind = MemberEvent::Kind;

// A host's launcher: a link of its own, and a relay.
struct Launcher {
  explicit Launcher(const store::Endpoint& store) : relay(store) {
    link = std::make_unique<MemberLink>(
        store, "agents", member(1, 4), LivenessOptions{},
        MemberCalls{.on_event = [this](const MemberEvent& event) { relay.deliver(event); },
                    .on_forwarded = [this](auto frames) { relay.deliver(std::move(frames)); }},
        patience());
    relay.connect(link.get());
  }
  ~Launcher() { relay.connect(nullptr); }

  MemberRelay relay;
  std::unique_ptr<MemberLink> link;
};

// Rank 0 is a member of the store's, ranks 1 and 2 of a launcher's relay.
class RelayedLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    launcher_.emplace(store());
    links_[0] = link(server_->address(), 0);
    links_[1] = link(launcher_->relay.address(), 1);
    links_[2] = link(launcher_->relay.address(), 2);
  }
  store::Endpoint store() const { return {.address = server_->address(), .secret = secret_}; }
  std::unique_ptr<MemberLink> link(const net::HostPort& at, int rank) {
    store::Endpoint endpoint = store();
    endpoint.address = at;
    return std::make_unique<MemberLink>(endpoint, "scope", member(rank), LivenessOptions{}, events_[rank].calls(41),
                                        patience());
  }
  MemberView seen(int rank) const {
    for (const MemberView& view : members_->members()) {
      if (view.scope == "scope" && view.info.rank == rank) return view;
    }
    return {};
  }

  const store::Secret secret_ = store::Secret::random();
  std::shared_ptr<MembershipServer> members_ = std::make_shared<MembershipServer>();
  std::unique_ptr<store::TcpStoreServer> server_ =
      std::make_unique<store::TcpStoreServer>(store::TcpStoreServerOptions{.secret = secret_, .extension = members_});
  std::optional<Launcher> launcher_;
  Events events_[3];
  std::unique_ptr<MemberLink> links_[3];
};

TEST_F(RelayedLinks, AreOneConnectionToTheStoreAndHearAllInOneOrder) {
  EXPECT_EQ(members_->members().size(), 4u) << "with the launcher";
  EXPECT_EQ(server_->client_count(), 2u);
  for (int k = 0; k < 20; ++k) {
    for (const auto& from : links_) from->say("/groups/1", {0, 2}, std::to_string(k));
  }
  EXPECT_EQ(events_[0].await_words(60), events_[2].await_words(60));
  links_[1]->report({.kind = Cause::Kind::failed, .rank = 1, .text = "no memory"});
  EXPECT_EQ(seen(1).state, MemberState::failed) << "a report that has returned is known to the store";
  EXPECT_EQ(seen(1).position.sequence, 41) << "and so is how far the rank had come";
  for (const int rank : {0, 2}) {
    expect_cause(events_[rank].await(Kind::failed).cause,
                 {.kind = Cause::Kind::failed, .rank = 1, .reporter = 1, .text = "no memory"});
  }
  events_[1].await_words(0);  // it is not one of the group
}

TEST_F(RelayedLinks, MayGoWithAGoodbyeAndBeRefused) {
  EXPECT_TRUE(thrown_by<StoreError>([&] { link(launcher_->relay.address(), 0); })) << "a duplicate";
  const store::Endpoint stranger{.address = launcher_->relay.address(), .secret = store::Secret::random()};
  EXPECT_TRUE(thrown_by<StoreError>([&] { MemberLink(stranger, "scope", member(0), {}, {}, patience()); }));
  links_[1]->goodbye(7);
  links_[1].reset();
  EXPECT_EQ(seen(1).state, MemberState::left);
  EXPECT_TRUE(events_[0].all().empty());
}

TEST_F(RelayedLinks, ALauncherThatEndsTakesThemAlong) {
  launcher_.reset();
  EXPECT_TRUE(events_[1].await(Kind::store_lost).is_of_relay);
  expect_cause(events_[0].await(Kind::lost).cause, {.kind = Cause::Kind::lost, .rank = 1});
}

TEST_F(RelayedLinks, HearThatTheStoreIsLostAndWhoHostedIt) {
  const std::string address = server_->address().to_string();
  server_.reset();
  const MemberEvent event = events_[1].await(Kind::store_lost);
  EXPECT_FALSE(event.is_of_relay);
  EXPECT_EQ(event.address, address);
  EXPECT_EQ(event.host, ProcessInfo::of_this_process());
}

}  // namespace
}  // namespace lockstep::membership::member_relay_test
