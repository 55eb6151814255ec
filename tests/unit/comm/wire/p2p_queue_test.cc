// SPDX-License-Identifier: Apache-2.0
// What a rank owes the others when it wants to leave.
#include "runtime/comm/wire/p2p_queue.h"

#include <gtest/gtest.h>

namespace lockstep::wire::p2p_queue_test {
namespace {

class P2pQueueTest : public ::testing::Test {
 protected:
  std::shared_ptr<WireP2pOp> start(bool is_send, std::int64_t count) {
    WireP2pOp p2p;
    p2p.is_send = is_send;
    p2p.buffer = BufferView(memory_.data(), count, DType::u8);
    p2p.target = memory_.data();
    p2p.peer = 1;
    p2p.tag = 7;
    return office_.start(std::move(p2p));
  }
  void post_from_1(std::int64_t count, std::size_t bytes_with_it = 0) {
    Frame frame;
    frame.kind = FrameKind::post;
    frame.number = 1;
    frame.record = {.dtype = DType::u8, .root = 7, .count = count};
    frame.payload = std::span(memory_).first(bytes_with_it);
    office_.on_frame(1, frame);
  }

  const rendezvous::Roster roster_ = {{0, 0, 100, "host", "boot"}, {1, 1, 101, "host", "boot"}};
  std::vector<std::byte> memory_{100000};
  P2pQueue office_{roster_, 0};
};

TEST_F(P2pQueueTest, ASendIsOwedUntilItIsTaken) {
  const auto sent = start(true, 10);
  EXPECT_EQ(office_.owed(), 1u);
  Frame taken;
  taken.kind = FrameKind::taken;
  taken.number = 1;
  office_.on_frame(1, taken);
  EXPECT_TRUE(sent->done);
  EXPECT_EQ(office_.owed(), 0u);
}

// The other side may be writing into its memory.
TEST_F(P2pQueueTest, ARecvIsOwedOnceItsBytesMayCome) {
  start(false, 100000);
  EXPECT_EQ(office_.owed(), 0u);
  post_from_1(100000);
  EXPECT_EQ(office_.owed(), 1u);
}

TEST_F(P2pQueueTest, ASmallMessageThatIsHereIsTakenBeforeLeaving) {
  start(false, 10);
  post_from_1(10, 10);
  EXPECT_EQ(office_.owed(), 0u);
  office_.refuse_posts();
  const auto actions = office_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].what, P2pAction::What::take);
}

TEST_F(P2pQueueTest, WhoLeavesTakesNothingMore) {
  start(false, 100000);
  office_.refuse_posts();
  post_from_1(100000);
  EXPECT_TRUE(office_.take_actions().empty());
  EXPECT_EQ(office_.owed(), 0u);
}

TEST_F(P2pQueueTest, AMessageThatIsShorterThanItSaysIsAMismatch) {
  start(false, 10);
  post_from_1(10);
  ASSERT_TRUE(office_.mismatch());
  EXPECT_NE(office_.mismatch()->find("sent less than it said"), std::string::npos) << *office_.mismatch();
}

}  // namespace
}  // namespace lockstep::wire::p2p_queue_test
