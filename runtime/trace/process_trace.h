// SPDX-License-Identifier: Apache-2.0
// The trace of this process: one, whatever groups it has, since a thread's span belongs to no group.
//
// Threads: any. The functions that keep something allocate nothing, but for a scalar's name when it is first kept,
// throw nothing, but for keep_scalar() without memory, and do nothing before open_trace() and in a forked child. None
// waits: at the end of a step, and for its batch, a lock is taken that is held for some words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/span.h"
#include "lockstep/trace/step_record.h"
#include "runtime/base/internal_api.h"
#include "runtime/trace/finding.h"
#include "runtime/trace/rank_totals.h"
#include "runtime/trace/trace_ring.h"

namespace lockstep::trace {

// From now on events are kept: in FOLDER/rankN.trace, or, if `folder` is empty or a file can't be made there, which is
// logged, in this process's memory. Later calls change nothing: ranks that are threads share the first one's.
void open_trace(const TraceIdentity& identity, const std::string& folder);
// "FOLDER/rank2.trace".
std::string trace_file(const std::string& folder, int rank);

// A step that has ended, and its buckets.
LOCKSTEP_INTERNAL_API void keep_step(const StepRecord& record, bool on_device) noexcept;
// Keeps the batch of all ranks in a step that was kept.
LOCKSTEP_INTERNAL_API void keep_batch(std::int64_t step, std::int64_t weight, std::optional<double> loss) noexcept;
// A span of this thread that is not a scope.
LOCKSTEP_INTERNAL_API void keep_span(SpanKind kind, Time begin, Time end) noexcept;

// This rank's own gradients had NaN or infinity in a step.
void keep_wrong_step() noexcept;
// Few: the trace has room for the first TraceRing::kMostFindings. The time is now.
void keep_finding(Finding finding);
// The replicas were equal in `step`, byte by byte.
void keep_equal(std::int64_t step) noexcept;
// The time until the end of the loop under progress(), in ns; -1: not known.
void keep_left(std::int64_t time) noexcept;

// This process has `done` steps behind it, of which earlier runs did `before`.
LOCKSTEP_INTERNAL_API void keep_steps_done(std::int64_t done, std::int64_t before) noexcept;
// A value by name; without `step` of the step that was done last. The name has at most ScalarTable::kMostNameBytes. The
// 1st, 2nd, 4th, 8th ... value of a name that the table has no room for is a warning.
LOCKSTEP_INTERNAL_API void keep_scalar(std::string_view name, double value,
                                       std::optional<std::int64_t> step = std::nullopt);
// As ScalarTable::newest().
std::vector<Scalar> newest_scalars();

// The totals of all that was kept, also of events that the ring has no room for any more.
RankTotals totals();

// For measurements of what it costs: whether events are kept.
LOCKSTEP_INTERNAL_API void switch_trace(bool is_on) noexcept;
// For tests: what has been kept; nothing without a trace.
std::optional<TraceRing::Contents> contents_of_trace();

}  // namespace lockstep::trace
