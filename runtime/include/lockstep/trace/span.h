// SPDX-License-Identifier: Apache-2.0
// A Span is a part of the program's time, in this rank's trace (docs/OBSERVE.md).
//
//   const lockstep::trace::Span span("tokenize");  // until the end of the scope
//
// The library has spans for its own work, so a program only names its own parts.
//
// Cost: two readings of the clock and one written cache line; no lock, no allocation. Spans are not kept before
//   init_process_group(), nor in a forked child.
// Threads: any; a span begins and ends on one thread. Throws nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep::trace {

// The activity that a span's time was spent on. Files contain the numbers.
enum class SpanKind : std::uint8_t {
  program = 1,     // the program's part, with a name
  data = 2,        // waiting for a batch, or reading it
  forward = 3,     // with gradients recorded
  backward = 4,    // with the communication in it
  optimizer = 5,   // step()
  snapshot = 6,    // the training's wait for a snapshot
  evaluation = 7,  // a forward without gradients
  collective = 8,  // a wait for other ranks, except for a bucket: buffers, single values, an agreed stop
};

class LOCKSTEP_API Span {
 public:
  // Begins a part of the program, named by the first 31 bytes of `name`, which outlives the span.
  explicit Span(std::string_view name) noexcept : Span(SpanKind::program, name) {}
  // For the library. A span within another one of its kind on the same thread is not kept.
  explicit Span(SpanKind kind) noexcept : Span(kind, {}) {}
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Span(SpanKind kind, std::string_view name) noexcept;

  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
  std::int64_t before_ = 0;  // ns of spans within the enclosing span that had ended when this one began
  SpanKind kind_;
  bool is_kept_;
};

}  // namespace lockstep::trace
