// SPDX-License-Identifier: Apache-2.0
// The times that a rank has spent on each activity since it began: numbers that only grow, so that a reader can
// subtract two looks. They are those of the end of its last synchronised step, and travel with its heartbeats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/span.h"
#include "runtime/trace/finding.h"
#include "runtime/trace/held_memory.h"
#include "runtime/trace/scalar_table.h"

namespace lockstep::trace {

inline constexpr std::size_t kSpanKinds = static_cast<std::size_t>(SpanKind::collective) + 1;

// Times are ns.
struct RankTotals {
  std::int64_t steps = 0;      // synchronised ones that have ended
  std::int64_t until = 0;      // of the rank's steady clock: the end of the last of them
  std::int64_t on_device = 0;  // of the steps
  std::int64_t in_steps = 0;   // from begin to end of each
  std::int64_t waited = 0;     // these two as StepRecord has them
  std::int64_t hidden = 0;
  std::int64_t after_steps = 0;    // from a step's end to the library's next span: the update, of a foreign optimizer
  std::int64_t rows = 0;           // of all ranks, as far as it is known
  std::int64_t resident = 0;       // bytes of memory, now
  std::int64_t snapshot_age = -1;  // since the last one was handed over, until now; -1: there was none
  std::array<std::int64_t, kSpanKinds> spans = {};  // by SpanKind, without those within; program's is 0
  std::int64_t wrong_steps = 0;                     // with NaN or infinity in this rank's own gradients
  std::int64_t equal_in = -1;       // the last step in which the replicas are known to have been equal, byte by byte
  std::int64_t left = -1;           // of the loop under progress(), as its bar has it; -1: not known
  HeldBytes held = {};              // now
  std::optional<double> loss = {};  // of the last step that told it
  std::optional<Finding> finding = {};  // the first one, without its time
  std::vector<Scalar> scalars = {};     // the newest value of each name

  bool operator==(const RankTotals&) const = default;
  std::int64_t of(SpanKind kind) const { return spans[static_cast<std::size_t>(kind)]; }
};

// A word of at most kMostTotalsCharacters, without a blank: 640, and 172 at most for each scalar.
inline constexpr std::size_t kMostTotalsCharacters = 16384;
std::string encode(const RankTotals& totals);
// nullopt if the text is not encode()'s; words behind those that are known are passed over.
std::optional<RankTotals> decode_rank_totals(std::string_view text);

}  // namespace lockstep::trace
