// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/group_word.h"

#include "lockstep/base/environment.h"
#include "runtime/base/record.h"

namespace lockstep::nccl {
namespace {

std::string bits_text(const comm::NoteOps& note) { return std::to_string(note.bits()); }
comm::NoteOps note_of(std::string_view bits) {
  return comm::NoteOps::of_bits(static_cast<std::uint16_t>(parse_int(bits).value_or(0)));
}

constexpr auto kFields = [](auto& word, auto& fields) {
  fields.kind("nccl word");
  fields("kind", word.kind, GroupWord::Kind::aborted);
  fields("rank", word.rank, 0);
  fields("last", word.last);
  fields("sequence", word.sequence);
  fields("has_record", word.has_record, false, true);
  if (word.has_record) {
    fields("operation", word.record.kind, comm::OpKind::allocate);
    fields("dtype", word.record.dtype, DType::u8);
    fields("op", word.record.op, ReduceOp::product);
    fields("weighted", word.record.weighted, false, true);
    fields("root", word.record.root);
    fields("count", word.record.count);
    fields("weight", word.record.words[0]);
    fields("note", word.record.note, bits_text, note_of);
  }
  fields.list("messages", word.messages);
};

}  // namespace

std::string encode(const GroupWord& word) { return write_record(word, kFields); }

std::optional<GroupWord> decode_word(std::string_view text, int ranks) {
  auto word = read_record<GroupWord>(text, kFields);
  const bool has_all = word && word->rank < ranks && (word->kind != GroupWord::Kind::called || word->has_record);
  return has_all ? word : std::nullopt;
}

}  // namespace lockstep::nccl
