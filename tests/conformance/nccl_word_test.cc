// SPDX-License-Identifier: Apache-2.0
// The words that the ranks of a group over NCCL say to each other, as text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/comm/nccl/group_word.h"

namespace lockstep::testing::nccl_word_test {
namespace {

using nccl::decode_word;
using nccl::GroupWord;
using Kind = GroupWord::Kind;

TEST(NcclWord, KeepsARecord) {
  GroupWord said{.kind = Kind::called, .rank = 2, .sequence = 17, .has_record = true};
  said.record = {.kind = comm::OpKind::reduce_scatter,
                 .dtype = DType::f16,
                 .op = ReduceOp::max,
                 .weighted = true,
                 .root = 3,
                 .count = 1000,
                 .note = comm::NoteOps::of_bits(6)};
  said.record.words[0] = -32;
  const auto heard = decode_word(nccl::encode(said), 3);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->kind, Kind::called);
  EXPECT_EQ(heard->rank, 2);
  EXPECT_EQ(heard->sequence, 17);
  ASSERT_TRUE(heard->has_record);
  EXPECT_TRUE(comm::same_operation(heard->record, said.record));
  EXPECT_EQ(heard->record.words[0], -32);
}

TEST(NcclWord, KeepsAGoodbye) {
  const std::vector<std::string> messages = {"1", "7", "9"};
  const auto heard = decode_word(nccl::encode({.kind = Kind::left, .last = 41, .messages = messages}), 1);
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->last, 41);
  EXPECT_EQ(heard->messages, messages);
  EXPECT_FALSE(heard->has_record);
}

TEST(NcclWord, IsRefusedWhereItIsNone) {
  const std::string good = nccl::encode({.kind = Kind::aborted, .rank = 2});
  EXPECT_TRUE(decode_word(good, 3));
  EXPECT_FALSE(decode_word(good, 2)) << "not a rank of the group";
  EXPECT_FALSE(decode_word(good.substr(0, good.size() - 1), 3));
  EXPECT_FALSE(decode_word(nccl::encode({.kind = static_cast<Kind>(5)}), 3));
  EXPECT_FALSE(decode_word(nccl::encode({.kind = Kind::called, .sequence = 1}), 3)) << "called what?";
  for (const std::string text :
       {"", "C 2 17 1 0 0 1 0 1000 32 0", "lockstep nccl word\n", "lockstep claim 2\nrank 0\n"}) {
    EXPECT_FALSE(decode_word(text, 3)) << text;
  }
}

}  // namespace
}  // namespace lockstep::testing::nccl_word_test
