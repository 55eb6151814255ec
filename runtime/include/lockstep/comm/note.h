// SPDX-License-Identifier: Apache-2.0
// A note: a few integers of each rank that ride with an all-reduce, and what the integers of all ranks come to.
//
// For what all ranks must know with every step, at the price of some bytes beside the data and without a collective of
// its own. Every rank learns the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// How the ranks' values of one field are combined.
enum class NoteOp : std::uint8_t {
  sum = 1,  // the sum of all ranks' values, modulo 2^64
  any,      // 1 if some rank's value is not 0, else 0
  equal,    // 1 if all ranks' values are equal, else 0
};
LOCKSTEP_API std::string_view name_of(NoteOp op);

struct NoteField {
  NoteOp op = NoteOp::sum;  // the same on all ranks
  std::int64_t value = 0;   // this rank's
};
inline constexpr std::size_t kMostNoteFields = 7;

}  // namespace lockstep
