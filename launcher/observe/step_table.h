// SPDX-License-Identifier: Apache-2.0
// Where the time of each step went, on each rank. Pure.
//
// A step's time is that from the end of the synchronised backward before it to the end of its own: optimizer, data,
// forward, backward. Only times of one rank are subtracted from each other, so that hosts' clocks need not agree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/trace/rank_trace.h"

namespace lockstep::launcher {

enum class Phase : std::uint8_t {
  data,
  forward,
  backward,   // without the time in the group's calls
  hidden,     // communication within backward: in the group's calls, before the last gradient; on a device beside it
  exposed,    // communication that was waited for
  optimizer,  // of a program whose optimizer is not ours: what follows the backward, up to the next batch or forward
  snapshot,
  evaluation,
  other,
};
inline constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::other) + 1;
std::string_view name_of(Phase phase);

struct StepRow {
  std::int64_t number = 0;  // TracedStep::number
  std::int64_t step = 0;
  std::int64_t begin = 0;  // ns, of the rank's clock
  std::int64_t end = 0;
  std::array<std::int64_t, kPhases> ns = {};
  bool on_device = false;
  std::int64_t weight = 0;
  std::optional<double> loss = {};

  std::int64_t operator[](Phase phase) const { return ns[static_cast<std::size_t>(phase)]; }
  std::int64_t length() const { return end - begin; }
  // The time that the rank took for its own work: all but what it waited for others and did for them.
  std::int64_t own() const;
};

// Of a row that has its bounds, on_device and what was in spans, with communication within backward: takes that apart,
// into `hidden` and `waited`, and finds what is other.
void settle(StepRow& row, std::int64_t hidden, std::int64_t waited);

struct RankTable {
  int rank = 0;
  std::string host = {};
  std::int64_t wall_clock = 0;    // to be added to the rows' times
  std::int64_t steps_before = 0;  // that earlier starts have done
  std::vector<StepRow> rows = {};

  // How many steps the job has done behind this one.
  std::int64_t done(const StepRow& row) const { return steps_before + row.step + 1; }
};

// Without the first step that the trace has: what was before it is not known.
RankTable table_of(const trace::RankTrace& trace);

// The rows of one step, by rank as the tables are, where all of them have it.
std::vector<std::vector<const StepRow*>> rows_by_step(const std::vector<RankTable>& tables);

std::int64_t median_of(std::vector<std::int64_t> values);  // the lower one of two; 0 of none

// The rank that the others wait for, step after step.
struct Straggler {
  int rank = 0;
  std::string host = {};
  double share = 0;           // of a step's time: its own work beyond the median of the other ranks', the median step's
  Phase cause = Phase::data;  // what most of that was spent on
  std::size_t steps = 0;      // that were looked at
};
// Nothing if none costs `least` of the steps, or there are less than kStragglerSteps, or one rank.
inline constexpr std::size_t kStragglerSteps = 10;
std::optional<Straggler> find_straggler(const std::vector<RankTable>& tables, double least = 0.05);
// "rank 3 (host b) costs 14 % of every step: data".
std::string describe(const Straggler& straggler);

}  // namespace lockstep::launcher
