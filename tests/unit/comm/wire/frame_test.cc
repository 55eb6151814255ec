// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other of collectives and messages: as bytes, of whom it has come, and what is owed to whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "lockstep/job/cause.h"
#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/p2p_queue.h"
#include "tests/support/error_of.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire::frame_test {
namespace {

using lockstep::testing::expect_text;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr NoteField kFields[] = {{NoteOp::equal}, {NoteOp::sum}, {NoteOp::any},  {NoteOp::sum},
                                 {NoteOp::sum},   {NoteOp::sum}, {NoteOp::equal}};

Frame example() {
  Frame frame;
  frame.kind = FrameKind::post;
  frame.number = 0x0102030405060708;
  frame.record = {.kind = comm::OpKind::scatter,
                  .dtype = DType::bf16,
                  .op = ReduceOp::product,
                  .weighted = true,
                  .root = -2,
                  .count = std::numeric_limits<std::int64_t>::max(),
                  .unit = std::int64_t{1} << 40,
                  .note = comm::NoteOps(kFields),
                  .words = {-1, 2, 3, 4, 5, 6, 7, std::int64_t{1} << 62}};
  return frame;
}

TEST(Frames, ComeBackAsTheyWereWritten) {
  const std::string text(kInlineBytes, 'x');
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, kInlineBytes}) {
    Frame frame = example();
    frame.payload = bytes_of(std::string_view(text).substr(0, length));
    const FrameBytes bytes = write_frame(frame);
    const auto read = read_frame(bytes);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->kind, frame.kind);
    EXPECT_EQ(read->number, frame.number);
    EXPECT_TRUE(comm::same_operation(read->record, frame.record));
    EXPECT_EQ(read->record.words, frame.record.words);
    EXPECT_EQ(read->record.unit, std::int64_t{1} << 40);
    EXPECT_EQ(text_of(read->payload), text.substr(0, length));
  }
}

// Little-endian, whatever the machine.
TEST(Frames, HaveTheirBytesWhereTheFormatSays) {
  const FrameBytes bytes = write_frame(example());
  const unsigned char wanted[] = {'l',  's',  'w',  '7',  2,    7,    2,    4,    1,    0,    0x67, 0x35,
                                  0xfe, 0xff, 0xff, 0xff, 0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01};
  for (std::size_t i = 0; i < sizeof wanted; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), wanted[i]) << "byte " << i;
  for (std::size_t i = 32; i < 40; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), i == 37 ? 1 : 0) << "byte " << i;
  for (std::size_t i = 72; i < 80; ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), i == 72 ? 2 : 0) << "byte " << i;
}

TEST(Frames, WhatIsNoneIsRefused) {
  const FrameBytes good = write_frame(example());
  ASSERT_TRUE(read_frame(good));
  EXPECT_TRUE(read_frame(std::span(good).first(used_bytes(good))));
  EXPECT_FALSE(read_frame(std::span(good).first(used_bytes(good) - 1)));
  EXPECT_FALSE(read_frame(std::span(good).first(20)));
  struct Change {
    std::size_t at;
    int value;
  };
  // Magic, kind twice, operation, dtype, op, and a payload that is longer than the frame.
  for (const Change change : {Change{0, 'x'}, {4, 0}, {4, 99}, {5, 99}, {6, 99}, {7, 99}, {43, 1}}) {
    FrameBytes bad = good;
    bad[change.at] = static_cast<std::byte>(change.value);
    EXPECT_FALSE(read_frame(bad)) << "byte " << change.at;
  }
  Frame failed;
  failed.kind = FrameKind::failed;
  EXPECT_FALSE(read_frame(write_frame(failed))) << "without a cause";
  const std::string cause = encode(Cause{.text = "rank 2 is late"});
  failed.payload = bytes_of(cause);
  EXPECT_TRUE(read_frame(write_frame(failed)));
}

TEST(ArrivalTable, AnyRankMayBeAhead) {
  ArrivalTable call(3);
  const auto come = [&](int rank, std::int64_t count) { call.note(rank, {{.count = count}, {}}); };
  come(2, 20);
  come(2, 21);
  come(0, 20);
  EXPECT_FALSE(call.take());
  EXPECT_THAT(call.absent(1), ElementsAre(1));
  EXPECT_THAT(call.absent(2), ElementsAre(0, 1));
  EXPECT_EQ(call.next_of(2), 3);
  come(1, 20);
  EXPECT_EQ(call.take().value()[2]->record.count, 20);
  EXPECT_EQ(call.taken(), 1);
  EXPECT_FALSE(call.take());
  come(0, 21);
  come(1, 21);
  EXPECT_EQ(call.take().value()[2]->record.count, 21);
  EXPECT_THAT(call.absent(2), IsEmpty());
}

TEST(ArrivalTable, TellsWhoCameLastAndHowLongAfterTheFirst) {
  const auto at = [](int seconds) {
    return Announcement{{}, {}, std::chrono::steady_clock::time_point(std::chrono::seconds(seconds))};
  };
  const LastArrival last = last_of({at(12), at(30), at(10), at(29)});
  EXPECT_EQ(last.rank, 1);
  EXPECT_EQ(last.behind, std::chrono::seconds(20));
}

// What differs, and weights, are tested on every backend by tests/conformance.
TEST(Compare, LessDataThanTheRecordSays) {
  const rendezvous::Roster roster = roster_of({1, 1});
  comm::CollectiveArgs args;
  args.size = 2;
  const auto mismatch = [&](const comm::OpRecord& record, std::size_t bytes_of_0, std::size_t bytes_of_1) {
    args.record = record;
    const Arrivals arrivals = {Announcement{record, std::vector<std::byte>(bytes_of_0)},
                               Announcement{record, std::vector<std::byte>(bytes_of_1)}};
    return compare(args, 5, arrivals, roster).mismatch;
  };
  const comm::OpRecord reduced{.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 10};
  EXPECT_EQ(mismatch(reduced, 40, 40), std::nullopt);
  expect_text(mismatch(reduced, 40, 39).value(),
              {"all_reduce 5", "rank 1 (host host1", "sent less than its record says"});
  const comm::OpRecord large{.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 100000};
  EXPECT_EQ(mismatch(large, 0, 0), std::nullopt) << "nothing is to come with the frame";
  const comm::OpRecord of_root_1{.kind = comm::OpKind::broadcast, .dtype = DType::f32, .root = 1, .count = 10};
  EXPECT_EQ(mismatch(of_root_1, 0, 40), std::nullopt) << "rank 0 gives nothing";
}

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

  const rendezvous::Roster roster_ = roster_of({2});
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
}  // namespace lockstep::wire::frame_test
