// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/frame.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "lockstep/job/cause.h"

namespace lockstep::wire::frame_test {
namespace {

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

}  // namespace
}  // namespace lockstep::wire::frame_test
