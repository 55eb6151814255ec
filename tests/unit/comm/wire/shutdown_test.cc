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
#include "tests/support/thread_scopes.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire::shutdown_test {
namespace {

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
    for (int r = 0; r < 3; ++r) context.roster.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
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
  std::vector<std::string> words_;  // that ranks have said; once another word of the same scope has come back
  const std::shared_ptr<membership::Scopes> all_ = scopes_over(store_);
  int failures_ = 0;
};

TEST_F(ShutdownTest, AGoodbyeLastsUntilEverybodyHasSeenIt) {
  const auto rank = ending();
  int waits = 0;
  wire_.on_wait = [&] { EXPECT_TRUE(rank->on_frame(++waits, frame_of(FrameKind::seen))); };
  rank->say_goodbye(7);
  EXPECT_EQ(waits, 2);
  EXPECT_THAT(wire_.sent, ElementsAre("goodbye 7 to 1", "goodbye 7 to 2"));
  EXPECT_TRUE(rank->leaving());
  EXPECT_THAT(words_, IsEmpty()) << "nobody needs it there";
}

TEST_F(ShutdownTest, WhoLeavesAtTheSameTimeIsAnswered) {
  const auto rank = ending();
  bool first = true;
  wire_.on_wait = [&] {
    if (std::exchange(first, false)) {
      rank->on_frame(2, frame_of(FrameKind::goodbye, 7));
      return;
    }
    rank->on_frame(1, frame_of(FrameKind::seen));
    rank->on_frame(2, frame_of(FrameKind::seen));
  };
  rank->say_goodbye(7);
  EXPECT_THAT(wire_.sent, ElementsAre("goodbye 7 to 1", "goodbye 7 to 2", "seen 0 to 2"));
  EXPECT_EQ(rank->left_after(2), 7);
  EXPECT_EQ(rank->left_after(1), std::nullopt);
}

TEST_F(ShutdownTest, WhoHasLeftBeforeIsNotWaitedFor) {
  const auto rank = ending();
  rank->on_frame(1, frame_of(FrameKind::goodbye, 3));
  expect_has_left(*rank, 1, 3);
  wire_.on_wait = [&] { EXPECT_FALSE(rank->is_loss(2)); };  // it is gone, which needs no answer either
  rank->say_goodbye(7);
  EXPECT_THAT(wire_.sent, ElementsAre("goodbye 7 to 2", "seen 0 to 1"));
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

// Of two ranks that leave together, one closes its connections first: that is no news for a third that still works.
TEST_F(ShutdownTest, WhoHasSaidGoodbyeCallsNobodyDead) {
  const auto rank = ending();
  wire_.on_wait = [&] {
    for (const int peer : {1, 2}) EXPECT_FALSE(rank->is_loss(peer));
  };
  rank->say_goodbye(7);
  EXPECT_THAT(words_, IsEmpty());
}

TEST_F(ShutdownTest, AGoodbyeGoesToWhomThereIsAConnectionTo) {
  wire_.strangers = {2};
  const auto rank = ending();
  wire_.on_wait = [&] { rank->on_frame(1, frame_of(FrameKind::seen)); };
  rank->say_goodbye(7, {1});
  EXPECT_THAT(wire_.sent, ElementsAre("goodbye 7 to 1"));
  EXPECT_THAT(words_, IsEmpty()) << "rank 1 tells the others";
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

TEST_F(ShutdownTest, ABrokenTransferWaitsForWhoCanSayWhy) {
  const auto rank = ending();
  wire_.on_wait = [&] { rank->failure().adopt({.rank = 1, .text = "rank 1 has died"}); };
  rank->wait_for_a_cause("reset by peer", 5);
  EXPECT_EQ(rank->failure().known().text, "rank 1 has died");
}

TEST_F(ShutdownTest, ABrokenTransferThatNobodyExplainsSaysWhoHasLeft) {
  const auto rank = ending({.aftermath = {}});
  rank->on_frame(1, frame_of(FrameKind::goodbye, 4));
  rank->wait_for_a_cause("reset by peer", 5);
  EXPECT_EQ(rank->failure().known().sequence, 5);
  EXPECT_EQ(rank->failure().known().text,
            "rank 0 (host host0, pid 100) lost a connection: idle: reset by peer; rank 1 (host host1, pid 101) "
            "left after collective 4");
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
