// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "launcher/observe/host_clocks.h"

namespace lockstep::launcher {
namespace {

using trace::SpanKind;
using trace::TracedBucket;
using trace::TracedSpan;
using trace::TracedStep;

// Lanes in display order. The program's lanes start at kProgram, by thread.
enum Lane : int { kCompute = 1, kWaiting = 2, kData = 3, kCommunication = 10, kProgram = 100 };

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string lane_name(int lane) {
  if (lane == kCompute) return "compute";
  if (lane == kWaiting) return "waiting";
  if (lane == kData) return "data";
  if (lane >= kProgram) return fmt::format("program, thread {}", lane - kProgram);
  return lane == kCommunication ? "communication" : fmt::format("communication {}", lane - kCommunication + 1);
}

class Writer {
 public:
  // `begin` is the time on the common clock that counts as 0.
  Writer(const HostClocks& clocks, std::int64_t begin) : clocks_(clocks), begin_(begin) {}

  void rank(const RunTrace& trace) {
    host_ = trace.rank.identity.host;
    rank_ = trace.rank.identity.rank;
    auto& host = names_[rank_];
    if (host.empty()) host = fmt::format("rank {} (host {})", rank_, trace.rank.identity.host);
    for (const TracedSpan& span : trace.rank.spans) put_span(trace.rank, span);
    for (const trace::Finding& finding : trace.rank.findings) put_finding(finding);
    std::vector<std::int64_t> lane_ends;  // ends of the lanes of communication
    for (const TracedStep& step : trace.rank.steps) {
      if (step.end > step.last_gradient_ready) {
        put(kWaiting, "wait for buckets", step.last_gradient_ready, step.end,
            fmt::format(R"("step": {}, "in_calls_us": {})", step.step, us(step.waited)));
      }
      for (std::size_t i = 0; i < step.buckets.size(); ++i) put_bucket(step, i, lane_ends);
    }
  }

  std::string take(const std::string& other_data) {
    std::string text = "{\"displayTimeUnit\": \"ms\", \"otherData\": " + other_data + ",\n\"traceEvents\": [\n";
    for (const auto& [rank, name] : names_) {
      text += meta(rank, 0, "process_name", "name", json_text(name));
      text += meta(rank, 0, "process_sort_index", "sort_index", fmt::format("{}", rank));
    }
    for (const auto& [rank, lane] : lanes_) {
      text += meta(rank, lane, "thread_name", "name", json_text(lane_name(lane)));
      text += meta(rank, lane, "thread_sort_index", "sort_index", fmt::format("{}", lane));
    }
    text += events_;
    if (text.ends_with(",\n")) text.erase(text.size() - 2, 1);
    return text + "]}\n";
  }

 private:
  static std::string us(std::int64_t ns) {
    return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
  }
  static std::string meta(int rank, int lane, std::string_view what, std::string_view key, const std::string& value) {
    return fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "{}", "args": {{"{}": {}}}}},)"
                       "\n",
                       rank, lane, what, key, value);
  }

  void put(int lane, std::string_view name, std::int64_t begin, std::int64_t end, const std::string& arguments) {
    lanes_.emplace(rank_, lane);
    events_ += fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": {}, "ts": {}, "dur": {}, "args": {{{}}}}},)"
                           "\n",
                           rank_, lane, json_text(name), us(clocks_.common(host_, begin) - begin_), us(end - begin),
                           arguments);
  }

  // Adds a flag on the rank.
  void put_finding(const trace::Finding& finding) {
    events_ +=
        fmt::format(R"({{"ph": "i", "s": "p", "pid": {}, "tid": {}, "name": {}, "ts": {}, "args": {{"step": {}}}}},)"
                    "\n",
                    rank_, static_cast<int>(kCompute), json_text(trace::describe(finding)),
                    us(clocks_.common(host_, finding.time) - begin_), finding.step);
  }

  // The compute lane has the part of a backward before the last gradient; the rest is waiting.
  static std::int64_t computed_until(const trace::RankTrace& trace, const TracedSpan& backward) {
    const auto after = std::ranges::upper_bound(trace.steps, backward.end, {}, &TracedStep::end);
    if (after == trace.steps.begin()) return backward.end;
    const TracedStep& last = *std::prev(after);
    return last.begin >= backward.begin && !last.on_device ? last.last_gradient_ready : backward.end;
  }

  void put_span(const trace::RankTrace& trace, const TracedSpan& span) {
    switch (span.kind) {
      case SpanKind::program: return put(kProgram + span.thread, span.name, span.begin, span.end, {});
      case SpanKind::data: return put(kData, "data", span.begin, span.end, {});
      case SpanKind::collective: return put(kWaiting, "wait for a collective", span.begin, span.end, {});
      case SpanKind::backward:
        return put(kCompute, "backward", span.begin, std::max(span.begin, computed_until(trace, span)), {});
      default: return put(kCompute, name_of(span.kind), span.begin, span.end, {});
    }
  }

  // Puts the bucket into the first lane that has room, so that spans of a lane never overlap.
  void put_bucket(const TracedStep& step, std::size_t index, std::vector<std::int64_t>& lane_ends) {
    const TracedBucket& bucket = step.buckets[index];
    const auto room = std::ranges::find_if(lane_ends, [&](std::int64_t end) { return end <= bucket.launched; });
    const auto lane = static_cast<std::size_t>(room - lane_ends.begin());
    if (room == lane_ends.end()) lane_ends.push_back(0);
    lane_ends[lane] = bucket.finished;
    put(kCommunication + static_cast<int>(std::min(lane, std::size_t{kProgram - kCommunication - 1})),
        fmt::format("bucket {}", index), bucket.launched, bucket.finished,
        fmt::format(R"("step": {}, "number": {}, "bytes": {}, "ready_before_launch_us": {}, "gradients_ready": {})",
                    step.step, step.number, bucket.bytes, us(bucket.launched - bucket.ready), bucket.gradients_ready));
  }

  const HostClocks& clocks_;
  std::int64_t begin_;
  std::string host_;
  int rank_ = 0;
  std::map<int, std::string> names_;
  std::set<std::pair<int, int>> lanes_;
  std::string events_;
};

// Returns the time of the first event, by the common clock.
std::int64_t first_time(const RunTrace& trace, const HostClocks& clocks) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const TracedSpan& span : trace.rank.spans) first = std::min(first, span.begin);
  for (const TracedStep& step : trace.rank.steps) first = std::min(first, step.begin);
  const bool has_any = first != std::numeric_limits<std::int64_t>::max();
  return has_any ? clocks.common(trace.rank.identity.host, first) : first;
}

std::string describe_clock(const std::vector<RunTrace>& traces, const HostClocks& clocks) {
  if (traces.empty()) return "none";
  std::string text = fmt::format("that of host {}", traces.front().rank.identity.host);
  if (clocks.error() > 0) {
    text +=
        fmt::format("; other hosts' times are right to {} us, by their common buckets", (clocks.error() + 999) / 1000);
  }
  for (const std::string& host : clocks.unknown()) {
    text += fmt::format("; host {} has no bucket in common with it and goes by its wall clock", host);
  }
  return text;
}

}  // namespace

std::string timeline_of(const std::vector<RunTrace>& traces) {
  const HostClocks clocks(traces);
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::uint64_t lost = 0;
  for (const RunTrace& trace : traces) {
    begin = std::min(begin, first_time(trace, clocks));
    lost += trace.rank.lost;
  }
  Writer writer(clocks, begin);
  for (const RunTrace& trace : traces) writer.rank(trace);
  return writer.take(fmt::format(R"({{"run_id": {}, "clock": {}, "clock_error_us": {}, "lost_events": {}}})",
                                 json_text(traces.empty() ? "" : traces.front().rank.identity.run_id),
                                 json_text(describe_clock(traces, clocks)), (clocks.error() + 999) / 1000, lost));
}

std::string timeline_file(const std::string& trace, std::size_t hosts, int node_rank) {
  if (hosts < 2) return trace;
  std::filesystem::path file(trace);
  const std::string ending = file.extension().native();
  file.replace_extension(fmt::format(".node{}{}", node_rank, ending));
  return file.native();
}

}  // namespace lockstep::launcher
