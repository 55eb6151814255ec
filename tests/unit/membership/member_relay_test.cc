// SPDX-License-Identifier: Apache-2.0
// Links of ranks over a relay and a launcher's link to a real store: what a rank hears, and by how many connections.
#include "runtime/membership/member_relay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/secret.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/cause_of.h"
#include "tests/support/error_of.h"
#include "tests/support/wait_until.h"

namespace lockstep::membership::member_relay_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_cause;
using lockstep::testing::expect_text;
using lockstep::testing::wait_until;
using namespace std::chrono_literals;
using Kind = MemberEvent::Kind;

Deadline relay_patience() { return Deadline::after(40s); }

// What a link was told, in order.
class RelayedEvents {
 public:
  void add(const MemberEvent& event) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(event);
  }
  std::vector<MemberEvent> all() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return events_;
  }
  void add_word(const std::string& group, const std::string& word) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    words_.push_back(group + ": " + word);
  }
  std::vector<std::string> words() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return words_;
  }
  MemberEvent await(Kind kind) {
    std::optional<MemberEvent> found;
    EXPECT_TRUE(wait_until([&] {
      for (const MemberEvent& event : all()) {
        if (!found && event.kind == kind) found = event;
      }
      return found.has_value();
    }));
    return found.value_or(MemberEvent{});
  }

 private:
  Mutex mutex_;
  std::vector<MemberEvent> events_ GUARDED_BY(mutex_);
  std::vector<std::string> words_ GUARDED_BY(mutex_);
};

// A host's launcher: a link of its own, and a relay.
struct Launcher {
  explicit Launcher(const store::Endpoint& store) : relay(store) {
    link = std::make_unique<MemberLink>(
        store, "agents", MemberInfo{.rank = 1, .world_size = 4, .process = ProcessInfo::of_this_process()},
        LivenessOptions{},
        MemberCalls{.on_event = [this](const MemberEvent& event) { relay.deliver(event); },
                    .on_forwarded = [this](auto frames) { relay.deliver(std::move(frames)); }},
        relay_patience());
    relay.connect(link.get());
  }
  ~Launcher() { relay.connect(nullptr); }

  MemberRelay relay;
  std::unique_ptr<MemberLink> link;
};

class RelayedLinks : public ::testing::Test {
 protected:
  store::Endpoint store() const { return {.address = server_->address(), .secret = secret_}; }
  std::unique_ptr<MemberLink> link(const net::HostPort& at, int rank, RelayedEvents& events,
                                   std::int64_t sequence = 0) {
    store::Endpoint endpoint = store();
    endpoint.address = at;
    return std::make_unique<MemberLink>(
        endpoint, "scope", MemberInfo{.rank = rank, .world_size = 3, .process = ProcessInfo::of_this_process()},
        LivenessOptions{},
        MemberCalls{
            .on_event = [&events](const MemberEvent& event) { events.add(event); },
            .position = [sequence] { return MemberPosition{.sequence = sequence}; },
            .on_word = [&events](const std::string& group, const std::string& word) { events.add_word(group, word); }},
        relay_patience());
  }

  const store::Secret secret_ = store::Secret::random();
  std::shared_ptr<MembershipServer> members_ = std::make_shared<MembershipServer>();
  std::unique_ptr<store::TcpStoreServer> server_ =
      std::make_unique<store::TcpStoreServer>(store::TcpStoreServerOptions{.secret = secret_, .extension = members_});
};

TEST_F(RelayedLinks, AreOneConnectionToTheStore) {
  Launcher launcher(store());
  RelayedEvents first;
  RelayedEvents second;
  const auto one = link(launcher.relay.address(), 1, first);
  const auto two = link(launcher.relay.address(), 2, second);
  EXPECT_EQ(members_->members().size(), 3u) << "with the launcher";
  EXPECT_EQ(server_->client_count(), 1u);
}

TEST_F(RelayedLinks, HearOfAFailureAndOfWhoReportedIt) {
  Launcher launcher(store());
  RelayedEvents direct;
  RelayedEvents first;
  RelayedEvents second;
  const auto zero = link(server_->address(), 0, direct);
  const auto one = link(launcher.relay.address(), 1, first, 41);
  const auto two = link(launcher.relay.address(), 2, second);
  one->report({.kind = Cause::Kind::failed, .rank = 1, .text = "no memory"});
  for (const MemberView& member : members_->members()) {
    if (member.scope != "scope" || member.info.rank != 1) continue;
    EXPECT_EQ(member.state, MemberState::failed) << "a report that has returned is known to the store";
    EXPECT_EQ(member.position.sequence, 41) << "and so is how far the rank had come";
  }
  for (RelayedEvents* events : {&direct, &second}) {
    const MemberEvent event = events->await(Kind::failed);
    EXPECT_EQ(event.number, 1);
    EXPECT_EQ(event.cause.text, "no memory");
    EXPECT_EQ(event.cause.reporter, 1);
  }
}

TEST_F(RelayedLinks, HearTheWordsOfAGroupInTheOrderOfAllOthers) {
  Launcher launcher(store());
  RelayedEvents direct;
  RelayedEvents first;
  RelayedEvents second;
  const auto zero = link(server_->address(), 0, direct);
  const auto one = link(launcher.relay.address(), 1, first);
  const auto two = link(launcher.relay.address(), 2, second);
  for (int k = 0; k < 20; ++k) {
    for (const auto* const from : {&zero, &one, &two}) (*from)->say("/groups/1", {0, 2}, std::to_string(k));
  }
  EXPECT_TRUE(wait_until([&] { return direct.words().size() == 60 && second.words().size() == 60; }));
  EXPECT_EQ(direct.words(), second.words());
  EXPECT_TRUE(first.words().empty()) << "it is not one of the group";
}

TEST_F(RelayedLinks, MayGoWithAGoodbyeAndBeRefusedAsDuplicates) {
  Launcher launcher(store());
  RelayedEvents direct;
  RelayedEvents first;
  const auto zero = link(server_->address(), 0, direct);
  auto one = link(launcher.relay.address(), 1, first);
  const auto problem = error_of<StoreError>([&] { link(launcher.relay.address(), 0, first); });
  expect_text(problem, {"two processes are rank 0"});
  one->goodbye(7);
  one.reset();
  for (const MemberView& member : members_->members()) {
    if (member.scope == "scope" && member.info.rank == 1) {
      EXPECT_EQ(member.state, MemberState::left);
    }
  }
  EXPECT_TRUE(direct.all().empty());
}

TEST_F(RelayedLinks, ALauncherThatEndsTakesThemAlong) {
  RelayedEvents direct;
  RelayedEvents first;
  const auto zero = link(server_->address(), 0, direct);
  auto one = [&] {
    const Launcher launcher(store());
    return link(launcher.relay.address(), 1, first);
  }();
  EXPECT_TRUE(first.await(Kind::store_lost).is_of_relay);
  const MemberEvent event = direct.await(Kind::lost);
  expect_cause(event.cause, {.kind = Cause::Kind::lost, .rank = 1});
}

TEST_F(RelayedLinks, HearThatTheStoreIsLostAndWhoHostedIt) {
  Launcher launcher(store());
  RelayedEvents first;
  const auto one = link(launcher.relay.address(), 1, first);
  const std::string address = server_->address().to_string();
  server_.reset();
  const MemberEvent event = first.await(Kind::store_lost);
  EXPECT_FALSE(event.is_of_relay);
  EXPECT_EQ(event.address, address);
  ASSERT_TRUE(event.host);
  EXPECT_EQ(*event.host, ProcessInfo::of_this_process());
}

TEST_F(RelayedLinks, WithAnotherSecretAreTurnedAway) {
  Launcher launcher(store());
  store::Endpoint endpoint{.address = launcher.relay.address(), .secret = store::Secret::random()};
  EXPECT_FALSE(error_of<StoreError>([&] {
                 MemberLink(endpoint, "scope", MemberInfo{.world_size = 3, .process = ProcessInfo::of_this_process()},
                            {}, {}, relay_patience());
               }).empty());
}

}  // namespace
}  // namespace lockstep::membership::member_relay_test
