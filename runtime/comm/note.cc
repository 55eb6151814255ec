// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/work.h"

#include <bit>

#include "runtime/comm/inline_scalars.h"

namespace lockstep {

std::string_view name_of(NoteOp op) {
  switch (op) {
    case NoteOp::sum: return "sum";
    case NoteOp::any: return "any";
    case NoteOp::equal: return "equal";
  }
  return "?";
}

namespace comm {
namespace {

std::int64_t add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// A bijection (the finaliser of SplitMix64, Steele, Lea, Flood 2014).
std::int64_t mix(std::int64_t value) {
  auto z = static_cast<std::uint64_t>(value) + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::int64_t>(z ^ (z >> 31));
}

}  // namespace

NoteOps::NoteOps(std::span<const NoteField> fields) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    bits_ = static_cast<std::uint16_t>(bits_ | static_cast<unsigned>(fields[i].op) << (2 * i));
  }
}

NoteOps NoteOps::of_bits(std::uint16_t bits) {
  NoteOps ops;
  std::size_t fields = 0;
  while (fields < kMostNoteFields && (bits >> (2 * fields) & 3) != 0) ++fields;
  ops.bits_ = static_cast<std::uint16_t>(bits & ((1u << (2 * fields)) - 1));
  return ops;
}

std::size_t NoteOps::fields() const { return (static_cast<std::size_t>(std::bit_width(bits_)) + 1) / 2; }

std::string describe(NoteOps ops) {
  std::string text;
  for (std::size_t i = 0; i < ops.fields(); ++i) text.append(i == 0 ? "" : ", ").append(name_of(ops[i]));
  return text;
}

void ScalarReduction::add(const InlineScalars& theirs) {
  too_heavy_ |= __builtin_add_overflow(words_[0], theirs[0], &words_[0]);
  for (std::size_t i = 1; i <= fields_; ++i) {
    switch (ops_[i - 1]) {
      case NoteOp::sum: words_[i] = comm::add(words_[i], theirs[i]); break;
      case NoteOp::any: words_[i] |= theirs[i] != 0; break;
      case NoteOp::equal: words_[i] = is_first_ || (words_[i] != 0 && theirs[i] == first_[i]); break;
    }
  }
  if (is_first_ && fields_ > 0) first_ = theirs;
  is_first_ = false;
}

InlineScalars summands(NoteOps ops, const InlineScalars& own) {
  InlineScalars result = own;
  for (std::size_t i = 1; i <= ops.fields(); ++i) {
    switch (ops[i - 1]) {
      case NoteOp::sum: break;
      case NoteOp::any: result[i] = own[i] != 0; break;
      case NoteOp::equal: result[i] = mix(own[i]); break;
    }
  }
  return result;
}

InlineScalars from_sums(NoteOps ops, const InlineScalars& own, const InlineScalars& sums, int ranks) {
  InlineScalars result = sums;
  for (std::size_t i = 1; i <= ops.fields(); ++i) {
    switch (ops[i - 1]) {
      case NoteOp::sum: break;
      case NoteOp::any: result[i] = sums[i] != 0; break;
      case NoteOp::equal: {
        const std::uint64_t if_equal = static_cast<std::uint64_t>(mix(own[i])) * static_cast<std::uint64_t>(ranks);
        result[i] = static_cast<std::uint64_t>(sums[i]) == if_equal;
        break;
      }
    }
  }
  return result;
}

}  // namespace comm
}  // namespace lockstep
