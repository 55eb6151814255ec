// SPDX-License-Identifier: Apache-2.0
// How a note travels: its fields as words beside a rank's part of a collective, and how the words of all ranks become
// one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/work.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// The operations of a note's fields, as ranks compare them.
class LOCKSTEP_INTERNAL_API NoteOps {
 public:
  constexpr NoteOps() = default;
  // At most kMostNoteFields.
  explicit NoteOps(std::span<const NoteField> fields);
  // From bits(), of another rank. Gaps end the note.
  static NoteOps of_bits(std::uint16_t bits);

  std::size_t fields() const;
  NoteOp operator[](std::size_t field) const { return static_cast<NoteOp>(bits_ >> (2 * field) & 3); }
  std::uint16_t bits() const { return bits_; }  // two for each field, from the lowest
  bool operator==(const NoteOps&) const = default;

 private:
  std::uint16_t bits_ = 0;
};
// "sum, equal".
std::string describe(NoteOps ops);

// The words that a rank's part of a collective carries beside its record: the weight (0 without one), then the note's
// fields.
inline constexpr std::size_t kInlineScalars = 1 + kMostNoteFields;
using InlineScalars = std::array<std::int64_t, kInlineScalars>;

// The words of all ranks, combined.
class LOCKSTEP_INTERNAL_API ScalarReduction {
 public:
  explicit ScalarReduction(NoteOps ops) : ops_(ops), fields_(ops.fields()) {}
  // Adds one rank's words. Once for each rank.
  void add(const InlineScalars& theirs);
  const InlineScalars& words() const { return words_; }
  // The sum of the weights does not fit.
  bool is_too_heavy() const { return too_heavy_; }

 private:
  NoteOps ops_;
  std::size_t fields_;
  InlineScalars words_{};
  InlineScalars first_{};
  bool is_first_ = true;
  bool too_heavy_ = false;
};

// The same where nothing but sums modulo 2^64 can be had: what a rank adds to them, and what it reads out of them.
// `equal` sums a hash of the value, and is true where the sum is as many times this rank's hash as there are ranks. The
// hash keeps a rank whose value is the mean of all (2 of 1, 2 and 3) from seeing what the others don't; values that
// differ look equal to some rank with a probability of 2^-64 per rank.
LOCKSTEP_INTERNAL_API InlineScalars summands(NoteOps ops, const InlineScalars& own);
LOCKSTEP_INTERNAL_API InlineScalars from_sums(NoteOps ops, const InlineScalars& own, const InlineScalars& sums,
                                              int ranks);

}  // namespace lockstep::comm
