// SPDX-License-Identifier: Apache-2.0
// A part of the program's time, in this rank's trace (docs/OBSERVE.md).
//
//   const lockstep::trace::Span span("tokenize");  // until the end of the scope
//
// The library has spans of its own for what it does: a program names only what is its own.
//
// Cost: two readings of the clock and one cache line that is written. No lock, no memory. Nothing is kept before
// init_process_group(), nor in a forked child.
// Threads: any; a span begins and ends on one thread. Throws nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep::trace {

// The activity that a span's time was spent on. The numbers are in files.
enum class SpanKind : std::uint8_t {
  program = 1,     // the program's own, with a name
  data = 2,        // waiting for a batch, or reading it
  forward = 3,     // with gradients recorded
  backward = 4,    // with what communication is in it
  optimizer = 5,   // step()
  snapshot = 6,    // what the training waits for it
  evaluation = 7,  // a forward without gradients
  collective = 8,  // a wait for other ranks but for a bucket: buffers, single values, an agreed stop
};

class LOCKSTEP_API Span {
 public:
  // Up to 31 bytes of `name` are kept, which outlives the span.
  explicit Span(std::string_view name) noexcept : Span(SpanKind::program, name) {}
  // For the library: a span within another of its kind on the same thread is not kept.
  explicit Span(SpanKind kind) noexcept : Span(kind, {}) {}
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Span(SpanKind kind, std::string_view name) noexcept;

  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
  std::int64_t before_ = 0;  // ns of spans within the one around this, that were over when it began
  SpanKind kind_;
  bool is_kept_;
};

}  // namespace lockstep::trace
