// SPDX-License-Identifier: Apache-2.0
// Traces of ranks that train in a known rhythm.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/observe/run_traces.h"

namespace lockstep::launcher::testing_traces {

// Of one step, in ns, in this order. The backward's communication is what it takes beyond `backward`.
struct Rhythm {
  std::int64_t optimizer = 1000;
  std::int64_t data = 500;
  std::int64_t forward = 2000;
  std::int64_t backward = 4000;
  std::int64_t hidden = 300;
  std::int64_t other = 200;  // between data and forward
};

// `steps` steps in which every rank is as fast as the slowest: each has `length` ns, and what a rank's own work leaves
// of it is waited for. `clock`: what this rank's clock is ahead.
inline trace::RankTrace trace_of(int rank, int steps, const Rhythm& own, std::int64_t length, std::int64_t clock = 0,
                                 bool has_optimizer = true) {
  using trace::SpanKind;
  trace::RankTrace trace{.identity = {.rank = rank,
                                      .world_size = 2,
                                      .pid = 100 + rank,
                                      .host = "n" + std::to_string(rank / 2),
                                      .run_id = "run-1"},
                         .wall_clock = -clock,
                         .began = 1'000'000 + clock};
  std::int64_t now = 1'000'000 + clock;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t end = now + length;
    const auto add = [&](SpanKind kind, std::int64_t ns) {
      trace.spans.push_back({.kind = kind, .begin = now, .end = now + ns});
      now += ns;
    };
    if (i > 0 && has_optimizer) add(SpanKind::optimizer, own.optimizer);
    if (i > 0 && !has_optimizer) now += own.optimizer;
    add(SpanKind::data, own.data);
    now += own.other;
    add(SpanKind::forward, own.forward);
    trace::TracedStep step{.number = i, .step = i, .begin = now};
    trace.spans.push_back({.kind = SpanKind::backward, .begin = now, .end = end});
    step.last_gradient_ready = now + own.backward + own.hidden;
    step.end = end;
    step.hidden = own.hidden;
    step.waited = end - step.last_gradient_ready;
    step.weight = 32;
    step.loss = 1.0 / (i + 1);
    step.buckets = {
        {.bytes = 1 << 20, .ready = now + 100, .launched = now + 200, .finished = end},
        {.bytes = 4096, .ready = step.last_gradient_ready, .launched = step.last_gradient_ready, .finished = end}};
    trace.steps.push_back(step);
    now = end;
  }
  return trace;
}

}  // namespace lockstep::launcher::testing_traces
