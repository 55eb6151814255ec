// SPDX-License-Identifier: Apache-2.0
// A Span records a part of the program's time in this rank's trace (docs/OBSERVE.md).
//
//   const lockstep::trace::Span span("tokenize");  // until the end of the scope
//
// The library records spans for its own work, so a program only adds spans for the parts that the program
// itself computes.
//
// Cost: a span reads the clock twice and writes one cache line; it takes no lock and allocates nothing. Spans are not
//   kept before init_process_group(), nor in a forked child.
// Threads: any thread may make spans; a span begins and ends on one thread. Spans throw nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep::trace {

// SpanKind is the activity on which a span's time was spent. Trace files contain the enumerators' numbers.
enum class SpanKind : std::uint8_t {
  program = 1,     // a part that the program named
  data = 2,        // waiting for a batch, or reading a batch
  forward = 3,     // a forward that records gradients
  backward = 4,    // a backward, including its communication
  optimizer = 5,   // an optimizer's step()
  snapshot = 6,    // the training's wait for a snapshot
  evaluation = 7,  // a forward without gradients
  // A wait for other ranks for buffers, single values, or an agreed stop. Waits for buckets are not included.
  collective = 8,
};

class LOCKSTEP_API Span {
 public:
  // Begins a span of the program, named by the first 31 bytes of `name`, which outlives the span.
  explicit Span(std::string_view name) noexcept : Span(SpanKind::program, name) {}
  // Begins a span of the library. A span within another span of the same kind on one thread is not kept.
  explicit Span(SpanKind kind) noexcept : Span(kind, {}) {}
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Span(SpanKind kind, std::string_view name) noexcept;

  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
  // The time in ns of the spans within the enclosing span that had ended when this span began.
  std::int64_t before_ = 0;
  SpanKind kind_;
  bool is_kept_;
};

}  // namespace lockstep::trace
