// SPDX-License-Identifier: Apache-2.0
// The contents of a rank's trace: spans, and synchronised steps with their buckets. Times are ns of the rank's steady
// clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/trace/span.h"
#include "lockstep/trace/step_record.h"
#include "runtime/trace/finding.h"
#include "runtime/trace/trace_ring.h"

namespace lockstep::trace {

struct TracedSpan {
  SpanKind kind = SpanKind::program;
  int thread = 0;  // of the process, in the order of their first spans; 255: one beyond that
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string name = {};  // of the program's own, at most 31 bytes
};

struct TracedBucket {
  std::int64_t bytes = 0;
  std::int64_t ready = 0;
  std::int64_t launched = 0;  // from then on this rank's part could be taken: its own arrival
  std::int64_t finished = 0;
  std::int64_t gradients_ready = 0;  // when it was launched
};

struct TracedStep {
  std::int64_t number = 0;  // of all synchronised steps of the process, from 0: the same on all ranks
  std::int64_t step = -1;   // of its Reducer
  bool on_device = false;
  std::int64_t begin = 0;
  std::int64_t last_gradient_ready = 0;
  std::int64_t end = 0;
  std::int64_t waited = 0;  // these two as StepRecord has them
  std::int64_t hidden = 0;
  std::int64_t weight = 0;  // of all ranks; 0 as long as it is not known
  std::optional<double> loss = {};
  std::vector<TracedBucket> buckets = {};
};

struct RankTrace {
  TraceIdentity identity = {};
  std::int64_t wall_clock = 0;    // to be added to times, to compare hosts
  std::int64_t began = 0;         // when the trace did
  HeldBytes held = {};            // the most
  std::int64_t steps_before = 0;  // that earlier runs have done: step k of this one is its job's step steps_before + k
  std::uint64_t lost = 0;         // events that the ring has no room for any more
  std::vector<TracedSpan> spans = {};
  std::vector<TracedStep> steps = {};
  std::vector<Finding> findings = {};
  std::vector<ScalarSeries> scalars = {};
};

// Pure. Words that are not an event are counted as lost.
RankTrace decode(const TraceRing::Contents& contents);

// The events of a step, and what is known later of its batch, as they are put into a ring.
TraceRing::Words words_of_span(SpanKind kind, int thread, std::int64_t begin, std::int64_t end, std::string_view name);
TraceRing::Words words_of(const TracedStep& step);
TraceRing::Words words_of(const TracedBucket& bucket, std::int64_t step_number);
// As it is put among the findings.
TraceRing::Words words_of(const Finding& finding);
TraceRing::Words words_of_batch(std::int64_t step, std::int64_t weight, std::optional<double> loss);

// "data", "forward" ...; of the program's own "program".
std::string_view name_of(SpanKind kind);

}  // namespace lockstep::trace
