// SPDX-License-Identifier: Apache-2.0
// The time of each step by phase, on each rank. Pure.
//
// A step's time runs from the end of the previous synchronised backward to the end of its own: optimizer, data,
// forward, backward. Only times of one rank are subtracted from each other, so hosts' clocks need not agree.
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
  waited,     // communication for which the rank waited
  optimizer,  // for an optimizer that is not lockstep's: the time from the backward to the next batch or forward
  snapshot,
  evaluation,
  other,
};
inline constexpr std::size_t kPhases = static_cast<std::size_t>(Phase::other) + 1;
std::string_view name_of(Phase phase);

inline double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

struct StepRow {
  std::int64_t number = 0;  // TracedStep::number
  std::int64_t step = 0;
  std::int64_t begin = 0;  // ns of the rank's clock
  std::int64_t end = 0;
  std::array<std::int64_t, kPhases> ns = {};
  bool on_device = false;
  std::int64_t weight = 0;
  std::optional<double> loss = {};

  std::int64_t operator[](Phase phase) const { return ns[static_cast<std::size_t>(phase)]; }
  std::int64_t& operator[](Phase phase) { return ns[static_cast<std::size_t>(phase)]; }
  std::int64_t length() const { return end - begin; }
  // Returns the time of the rank's own work: all except waiting for others and communicating with them.
  std::int64_t own() const;
};

// Completes a row that has its bounds, on_device and the time of spans, where backward still includes communication:
// splits that by `hidden` and `waited`, and sets other.
void settle(StepRow& row, std::int64_t hidden, std::int64_t waited);

struct RankTable {
  int rank = 0;
  std::string host = {};
  std::int64_t wall_clock = 0;    // is added to the rows' times to get the wall clock
  std::int64_t steps_before = 0;  // steps that earlier starts have finished
  trace::HeldBytes held = {};     // memory: the most
  std::vector<StepRow> rows = {};

  // Returns the number of steps that the job has finished with this one.
  std::int64_t done(const StepRow& row) const { return steps_before + row.step + 1; }
};

// Returns the table without the first traced step, since the time before it is not known.
RankTable table_of(const trace::RankTrace& trace);

// Returns the rows of each step that all ranks have, in the order of the tables.
std::vector<std::vector<const StepRow*>> rows_by_step(const std::vector<RankTable>& tables);

std::int64_t median_of(std::vector<std::int64_t> values);  // the lower one of two; 0 for no values

// The rank for which the others wait, step after step.
struct Straggler {
  int rank = 0;
  std::string host = {};
  // share of a step's time: own work beyond the median of the other ranks', in the median step
  double share = 0;
  Phase cause = Phase::data;  // the phase that took most of that
  std::size_t steps = 0;      // number of steps examined
};
// Returns nullopt if no rank costs `least` of the steps, or there are fewer than kStragglerSteps, or only one rank.
inline constexpr std::size_t kStragglerSteps = 10;
std::optional<Straggler> find_straggler(const std::vector<RankTable>& tables, double least = 0.05);
// Returns "rank 3 (host b) costs 14 % of every step: data".
std::string describe(const Straggler& straggler);

}  // namespace lockstep::launcher
