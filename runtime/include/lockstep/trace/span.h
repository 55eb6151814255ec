// SPDX-License-Identifier: Apache-2.0
// A Span records a part of the program's time in this rank's trace (docs/OBSERVE.md).
//
//   const lockstep::trace::Span span("tokenize");  // until the end of the scope
//
// The library records spans for its own work. A program adds spans only for the work that the program itself does.
//
// Cost: a span reads the clock twice and writes one cache line; a span takes no lock and allocates no memory. The trace
//   does not contain spans that begin before init_process_group() or in a forked child process.
// Threads: any thread may make spans; each span must begin and end on the same thread. Spans throw nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep::trace {

// SpanKind names the activity on which a span's time was spent. Trace files contain the enumerators' numbers.
enum class SpanKind : std::uint8_t {
  program = 1,     // a part that the program named
  data = 2,        // waiting for a batch, or reading a batch
  forward = 3,     // a forward that records gradients
  backward = 4,    // a backward, including its communication
  optimizer = 5,   // an optimizer's step()
  snapshot = 6,    // the training's wait for a snapshot
  evaluation = 7,  // a forward without gradients
  // The time spent waiting for other ranks in order to exchange buffers or single values with them, or to agree on a
  // stop. Waits for buckets are not included.
  collective = 8,
};

class LOCKSTEP_API Span {
 public:
  // Begins a span of the program's own work. The span's name is the first 31 bytes of `name`; the characters of `name`
  // must outlive the span.
  explicit Span(std::string_view name) noexcept : Span(SpanKind::program, name) {}
  // Begins a span of the library. If the thread is already in a span of kind `kind`, the new span is not recorded.
  explicit Span(SpanKind kind) noexcept : Span(kind, {}) {}
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Span(SpanKind kind, std::string_view name) noexcept;

  std::string_view name_;
  std::chrono::steady_clock::time_point begin_;
  // The total length, in ns, of the spans within the enclosing span that had already ended when this span began.
  std::int64_t before_ = 0;
  SpanKind kind_;
  bool is_kept_;
};

}  // namespace lockstep::trace
