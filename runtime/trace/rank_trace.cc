// SPDX-License-Identifier: Apache-2.0
// An event's first word: kind, span's kind, thread and a flag, of 8 bits each, and 32 bits of a step's number. The
// second and third are its begin and end; the other four are the kind's. A finding's: kind and, in the upper 32 bits,
// rank; time; step; a name as a span has.
#include "runtime/trace/rank_trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "runtime/base/printable.h"

namespace lockstep::trace {
namespace {

enum class EventKind : std::uint8_t { span = 1, step = 2, bucket = 3, batch = 4 };

constexpr std::size_t kNameWords = 4;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 60;  // in ns 36 years: who adds some need not look

std::uint64_t head_of(EventKind kind, std::uint64_t span, std::uint64_t thread, bool flag, std::int64_t number) {
  return static_cast<std::uint64_t>(kind) | (span & 0xff) << 8 | (thread & 0xff) << 16 |
         std::uint64_t{flag ? 1u : 0u} << 24 | static_cast<std::uint64_t>(number) << 32;
}

std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::int64_t number_of(std::uint64_t word) { return static_cast<std::int64_t>(word); }
std::int64_t step_number(const TraceRing::Words& words) { return number_of(words[0] >> 32); }

// From the second word on.
bool are_small(const TraceRing::Words& words, std::size_t count) {
  return std::all_of(words.begin() + 1, words.begin() + 1 + static_cast<std::ptrdiff_t>(count), [](std::uint64_t word) {
    return number_of(word) > -kMostNumber && number_of(word) < kMostNumber;
  });
}

bool is_span_kind(std::uint64_t kind) {
  return kind >= static_cast<std::uint64_t>(SpanKind::program) &&
         kind <= static_cast<std::uint64_t>(SpanKind::collective);
}

std::string name_in(const TraceRing::Words& words) {
  char name[kNameWords * sizeof(std::uint64_t)];
  std::memcpy(name, &words[3], sizeof(name));
  return printable({name, ::strnlen(name, sizeof(name))});
}

// The last byte stays 0.
void put_name(TraceRing::Words& words, std::string_view name) {
  if (!name.empty()) {
    std::memcpy(&words[3], name.data(), std::min(name.size(), kNameWords * sizeof(std::uint64_t) - 1));
  }
}

TracedSpan span_of(const TraceRing::Words& words) {
  return {.kind = static_cast<SpanKind>(words[0] >> 8 & 0xff),
          .thread = static_cast<int>(words[0] >> 16 & 0xff),
          .begin = number_of(words[1]),
          .end = number_of(words[2]),
          .name = name_in(words)};
}

TracedStep step_of(const TraceRing::Words& words) {
  return {.number = step_number(words),
          .step = number_of(words[6]),
          .on_device = (words[0] >> 24 & 1) != 0,
          .begin = number_of(words[1]),
          .last_gradient_ready = number_of(words[3]),
          .end = number_of(words[2]),
          .waited = number_of(words[4]),
          .hidden = number_of(words[5])};
}

TracedBucket bucket_of(const TraceRing::Words& words) {
  return {.bytes = number_of(words[4]),
          .ready = number_of(words[1]),
          .launched = number_of(words[3]),
          .finished = number_of(words[2]),
          .gradients_ready = number_of(words[5])};
}

// Nothing if the kind is of a later version.
std::optional<Finding> finding_of(const TraceRing::Words& words) {
  const auto kind = static_cast<FindingKind>(words[0] & 0xff);
  if (!are_small(words, 2)) return std::nullopt;
  if (kind != FindingKind::nan && kind != FindingKind::infinity && kind != FindingKind::apart) return std::nullopt;
  return Finding{.kind = kind,
                 .rank = static_cast<std::int32_t>(words[0] >> 32),
                 .step = number_of(words[2]),
                 .parameter = name_in(words),
                 .time = number_of(words[1])};
}

void take_batch(RankTrace& trace, const TraceRing::Words& words) {
  // On a device it is known some steps later.
  const auto found = std::find_if(trace.steps.rbegin(), trace.steps.rend(),
                                  [&](const TracedStep& step) { return step.step == number_of(words[6]); });
  if (found == trace.steps.rend()) return;
  found->weight = number_of(words[3]);
  if (words[5] != 0) found->loss = std::bit_cast<double>(words[4]);
}

bool take(RankTrace& trace, const TraceRing::Words& words) {
  const auto kind = static_cast<EventKind>(words[0] & 0xff);
  const bool is_of_numbers = kind == EventKind::step || kind == EventKind::bucket;
  if (!are_small(words, is_of_numbers ? 6 : 2) || number_of(words[2]) < number_of(words[1])) return false;
  switch (kind) {
    case EventKind::span:
      if (!is_span_kind(words[0] >> 8 & 0xff)) return false;
      trace.spans.push_back(span_of(words));
      return true;
    case EventKind::step: trace.steps.push_back(step_of(words)); return true;
    case EventKind::bucket:
      // The ring has lost the step of its first buckets, perhaps.
      if (trace.steps.empty() || trace.steps.back().number != step_number(words)) return false;
      trace.steps.back().buckets.push_back(bucket_of(words));
      return true;
    case EventKind::batch: take_batch(trace, words); return true;
  }
  return false;
}

}  // namespace

RankTrace decode(const TraceRing::Contents& contents) {
  RankTrace trace{.identity = contents.identity,
                  .wall_clock = contents.wall_clock,
                  .began = contents.began,
                  .held = contents.held,
                  .steps_before = contents.steps_before,
                  .lost = contents.lost,
                  .scalars = contents.scalars};
  for (const TraceRing::Words& words : contents.events) {
    if (!take(trace, words)) ++trace.lost;
  }
  for (const TraceRing::Words& words : contents.findings) {
    if (auto finding = finding_of(words)) trace.findings.push_back(std::move(*finding));
  }
  return trace;
}

TraceRing::Words words_of_span(SpanKind kind, int thread, std::int64_t begin, std::int64_t end, std::string_view name) {
  TraceRing::Words words{
      head_of(EventKind::span, static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(thread), false, 0),
      bits(begin), bits(end)};
  put_name(words, name);
  return words;
}

TraceRing::Words words_of(const TracedStep& step) {
  return {head_of(EventKind::step, 0, 0, step.on_device, step.number),
          bits(step.begin),
          bits(step.end),
          bits(step.last_gradient_ready),
          bits(step.waited),
          bits(step.hidden),
          bits(step.step)};
}

TraceRing::Words words_of(const TracedBucket& bucket, std::int64_t number) {
  return {head_of(EventKind::bucket, 0, 0, false, number),
          bits(bucket.ready),
          bits(bucket.finished),
          bits(bucket.launched),
          bits(bucket.bytes),
          bits(bucket.gradients_ready),
          0};
}

TraceRing::Words words_of_batch(std::int64_t step, std::int64_t weight, std::optional<double> loss) {
  return {head_of(EventKind::batch, 0, 0, false, 0),
          0,
          0,
          bits(weight),
          std::bit_cast<std::uint64_t>(loss.value_or(0)),
          loss ? 1u : 0u,
          bits(step)};
}

TraceRing::Words words_of(const Finding& finding) {
  TraceRing::Words words{static_cast<std::uint64_t>(finding.kind) |
                             static_cast<std::uint64_t>(static_cast<std::uint32_t>(finding.rank)) << 32,
                         bits(finding.time), bits(finding.step)};
  put_name(words, kept_name(finding.parameter));
  return words;
}

std::string_view name_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::program: return "program";
    case SpanKind::data: return "data";
    case SpanKind::forward: return "forward";
    case SpanKind::backward: return "backward";
    case SpanKind::optimizer: return "optimizer";
    case SpanKind::snapshot: return "snapshot";
    case SpanKind::evaluation: return "evaluation";
    case SpanKind::collective: return "collective";
  }
  return "?";
}

}  // namespace lockstep::trace
