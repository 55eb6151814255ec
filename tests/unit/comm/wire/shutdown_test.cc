// SPDX-License-Identifier: Apache-2.0
// How a rank leaves and how it fails, over a wire that does what the test says.
#include "runtime/comm/wire/shutdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/store/hash_store.h"
#include "tests/support/messages.h"
#include "tests/support/thread_scopes.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire::shutdown_test {
namespace {

using lockstep::testing::expect_message;
using lockstep::testing::scopes_over;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Notes what is sent; a wait is what the test makes of it.
class ScriptedWire final : public IdleWire {
 public:
  std::vector<std::string> sent;  // "goodbye 7 to 1"
  std::string cause_sent;
  std::function<void()> on_wait = [] {};
  std::set<int> strangers;  // whom there is no connection to

  bool is_connected(int peer) const override { return !strangers.contains(peer); }
  void send_frame(int peer, const FrameBytes& bytes) override {
    const auto frame = read_frame(bytes);
    const char* const kind = frame->kind == FrameKind::goodbye  ? "goodbye "
                             : frame->kind == FrameKind::seen   ? "seen "
                             : frame->kind == FrameKind::failed ? "failed "
                                                                : "another ";
    sent.push_back(kind + std::to_string(frame->number) + " to " + std::to_string(peer));
    if (frame->kind == FrameKind::failed) cause_sent = text_of(frame->payload);
  }
  void wait(const Deadline&) override { on_wait(); }
};

Frame frame_of(FrameKind kind, std::uint64_t number = 0) {
  Frame frame;
  frame.kind = kind;
  frame.number = number;
  return frame;
}

class ShutdownTest : public ::testing::Test {
 protected:
  ShutdownTest() {
    all_->subscribe("", [this](std::string_view word) { words_.emplace_back(word); });
  }
  std::unique_ptr<Shutdown> ending(const Shutdown::Limits& limits = {}, int rank = 0,
                                   std::shared_ptr<membership::Scopes> scopes = {}) {
    GroupContext context;
    context.identity.rank = rank;
    context.roster = roster_of({1, 1, 1});
    context.scopes = scopes ? std::move(scopes) : scopes_over(store_);
    auto shutdown = std::make_unique<Shutdown>(
        wire_, context, [this] { ++failures_; }, limits);
    shutdown->start();
    return shutdown;
  }
  void expect_has_left(Shutdown& rank, int peer, std::uint64_t last) {
    EXPECT_FALSE(rank.is_loss(peer));
    EXPECT_EQ(rank.left_after(peer), last);
    EXPECT_EQ(failures_, 0);
  }

  ScriptedWire wire_;
  store::HashStore store_;
  store::HashStore other_store_;
  std::vector<std::string> words_;  // that ranks have said; once another word of the same scope has come back
  const std::shared_ptr<membership::Scopes> all_ = scopes_over(store_);
  int failures_ = 0;
};

// What comes from a peer, or becomes of it.
using Event = std::function<void(Shutdown&)>;
Event seen(int peer) {
  return [peer](Shutdown& rank) { EXPECT_TRUE(rank.on_frame(peer, frame_of(FrameKind::seen))); };
}
Event leaves(int peer, std::uint64_t last) {
  return [=](Shutdown& rank) { EXPECT_TRUE(rank.on_frame(peer, frame_of(FrameKind::goodbye, last))); };
}
Event ends(int peer) {
  return [peer](Shutdown& rank) { EXPECT_FALSE(rank.is_loss(peer)); };
}

TEST_F(ShutdownTest, AGoodbyeLastsUntilEverybodyHasSeenItOrEnded) {
  struct Case {
    const char* name;
    std::vector<std::vector<Event>> events;  // before it, and in each wait
    std::vector<std::string> sent;
    std::set<int> strangers = {};
    std::vector<int> relays = {};
  };
  const std::vector<std::string> to_both = {"goodbye 7 to 1", "goodbye 7 to 2"};
  const Case cases[] = {
      {"seen", {{}, {seen(1)}, {seen(2)}}, to_both},
      // Of two ranks that leave together, one closes its connections first: no news for a third that still works.
      {"they end", {{}, {ends(1), ends(2)}}, to_both},
      {"one leaves at the same time",
       {{}, {leaves(2, 7)}, {seen(1), seen(2)}},
       {"goodbye 7 to 1", "goodbye 7 to 2", "seen 0 to 2"}},
      {"one has left before", {{leaves(1, 3), ends(1)}, {ends(2)}}, {"goodbye 7 to 2", "seen 0 to 1"}},
      {"rank 1 tells a stranger", {{}, {seen(1)}}, {"goodbye 7 to 1"}, {2}, {1}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    wire_.strangers = one.strangers;
    wire_.sent.clear();
    const auto rank = ending();
    auto next = one.events.begin();
    const auto happen = [&] {
      ASSERT_NE(next, one.events.end());
      for (const Event& event : *next++) event(*rank);
    };
    happen();
    wire_.on_wait = happen;
    rank->say_goodbye(7, one.relays);
    EXPECT_EQ(next, one.events.end()) << "it has waited for all";
    EXPECT_EQ(wire_.sent, one.sent);
    EXPECT_TRUE(rank->leaving());
    EXPECT_THAT(words_, IsEmpty()) << "nobody needs it there";
    EXPECT_EQ(failures_, 0);
  }
}

// One stands still for so long that the connection closes before it has read the goodbye.
TEST_F(ShutdownTest, AGoodbyeThatOneHasNotSeenIsHeardInTheScope) {
  const auto late = ending({}, 1);
  const auto rank = ending({.goodbye = {}});
  rank->say_goodbye(7);
  expect_has_left(*late, 0, 7);
}

// Its frame is here, and is read only while words are waited for.
TEST_F(ShutdownTest, AGoodbyeThatIsReadAfterTheEndOfItsConnectionCounts) {
  Shutdown* self = nullptr;
  const auto scopes = std::make_shared<membership::Scopes>();
  scopes->begin([&](const std::string& scope, const std::vector<int>& ranks, std::string_view word) {
    EXPECT_THAT(ranks, ElementsAre(0));
    self->on_frame(1, frame_of(FrameKind::goodbye, 4));
    scopes->deliver(scope, std::string(word));
  });
  const auto rank = ending({}, 0, scopes);
  self = rank.get();
  expect_has_left(*rank, 1, 4);
}

// A store that does not answer, and that nobody calls silent.
TEST_F(ShutdownTest, AWordThatDoesNotComeBackIsWaitedForOnce) {
  const auto scopes = std::make_shared<membership::Scopes>();
  scopes->begin([](auto&&...) {});
  const auto rank = ending({}, 0, scopes);
  EXPECT_TRUE(rank->is_loss(1));
  const Deadline deadline = Deadline::after(comm::Failure::kPatience);
  EXPECT_TRUE(rank->is_loss(2));
  EXPECT_FALSE(deadline.expired());
}

TEST_F(ShutdownTest, AnEndWithoutAGoodbyeIsALoss) {
  const auto rank = ending();
  EXPECT_TRUE(rank->is_loss(1));
  EXPECT_EQ(rank->left_after(1), std::nullopt);
  for (const std::string word : {"2 ", "2 nothing", "3 7", "-1 7", ""}) all_->say("", {}, word);
  EXPECT_TRUE(rank->is_loss(2));
}

TEST_F(ShutdownTest, AGoodbyeThatAnotherRankReportsCounts) {
  const auto rank = ending();
  rank->note_left(2, 4);
  expect_has_left(*rank, 2, 4);
}

// The relay leaves at the same time, and may not have told anybody.
TEST_F(ShutdownTest, AGoodbyeThatNoRelayHasAnsweredIsHeardInTheScope) {
  wire_.strangers = {2};
  const auto other = ending({}, 2);
  const auto rank = ending();
  rank->on_frame(1, frame_of(FrameKind::goodbye, 7));
  rank->say_goodbye(7, {1});
  expect_has_left(*other, 0, 7);
}

TEST_F(ShutdownTest, AFailureIsToldToWhomThereIsAConnectionTo) {
  wire_.strangers = {1};
  const auto rank = ending();
  rank->failure().adopt({.rank = 1, .text = "rank 1 has died"});
  rank->tell_of_failure();
  EXPECT_THAT(wire_.sent, ElementsAre("failed 0 to 2"));
}

TEST_F(ShutdownTest, AFailureEndsAGoodbye) {
  const auto rank = ending();
  const std::string cause = encode({.kind = Cause::Kind::timeout, .rank = 2, .text = "rank 2 is late"});
  Frame failed = frame_of(FrameKind::failed);
  failed.payload = bytes_of(cause);
  wire_.on_wait = [&] { rank->on_frame(1, failed); };
  rank->say_goodbye(7);
  EXPECT_EQ(failures_, 1);
  rank->release_buffers();
  EXPECT_THROW(rank->raise(), Timeout);
  rank->tell_of_failure();
  EXPECT_EQ(wire_.cause_sent, cause);
}

TEST_F(ShutdownTest, ABrokenTransferWaitsForWhoCanSayWhyOrSaysWhoHasLeft) {
  const auto told = ending();
  wire_.on_wait = [&] { told->failure().adopt({.rank = 1, .text = "rank 1 has died"}); };
  told->wait_for_a_cause("reset by peer", 5);
  EXPECT_EQ(told->failure().known().text, "rank 1 has died");
  const auto alone = ending({.aftermath = {}}, 0, scopes_over(other_store_));
  leaves(1, 4)(*alone);
  alone->wait_for_a_cause("reset by peer", 5);
  EXPECT_EQ(alone->failure().known().sequence, 5);
  expect_message("comm", "nobody explains it", alone->failure().known().text);
}

TEST_F(ShutdownTest, ACauseIsThrownOnceTheMemoryIsFree) {
  const auto rank = ending();
  rank->failure().adopt({.kind = Cause::Kind::mismatch, .text = "different sizes"});
  std::atomic<bool> free = false;
  std::latch raising(1);
  std::thread program([&] {
    raising.count_down();
    EXPECT_THROW(rank->raise(), Mismatch);
    EXPECT_TRUE(free);
  });
  raising.wait();
  free = true;
  rank->release_buffers();
  program.join();
}

TEST_F(ShutdownTest, FramesAboutOtherThingsAreNotTaken) {
  const auto rank = ending();
  for (const FrameKind kind : {FrameKind::collective, FrameKind::post, FrameKind::taken, FrameKind::accept}) {
    EXPECT_FALSE(rank->on_frame(1, frame_of(kind)));
  }
  EXPECT_THAT(wire_.sent, IsEmpty());
}

}  // namespace
}  // namespace lockstep::wire::shutdown_test
