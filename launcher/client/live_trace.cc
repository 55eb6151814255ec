// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/live_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/base/system.h"
#include "launcher/client/top.h"
#include "launcher/observe/timeline.h"
#include "lockstep/base/error.h"
#include "runtime/membership/member_info.h"
#include "runtime/trace/trace_ring.h"

namespace lockstep::launcher {
namespace {

RunTraces traces_in_memory(const LiveReport& report) {
  RunTraces found;
  const std::string host = membership::ProcessInfo::of_this_process().host;
  for (const ReportedRank& rank : report.ranks) {
    if (rank.host != host) continue;
    const std::string file = trace::trace_in_memory_of(rank.pid);
    if (file.empty()) {
      found.problems.push_back(fmt::format("rank {} (pid {}): no trace in its memory", rank.rank, rank.pid));
      continue;
    }
    found.traces.push_back({report.facts.start, trace::decode(trace::TraceRing::read_file(file))});
  }
  return found;
}

// Returns the traces of the running start.
RunTraces traces_of(const FoundRun& run) {
  if (run.facts->log_dir.empty()) return traces_in_memory(ask_for_report(run));
  RunTraces traces = read_traces(run.facts->log_dir);
  std::erase_if(traces.traces, [&](const RunTrace& trace) { return trace.start != run.facts->start; });
  return traces;
}

void write_trace(RunTraces traces, const std::string& run_id, const RunsOptions& options) {
  for (const std::string& problem : traces.problems) print_error("lockstep trace: " + problem);
  const auto ranks = traces.traces.size();
  const std::string file = options.file.empty() ? run_id + ".trace.json" : options.file;
  write_file(file, timeline_of(last_steps(std::move(traces.traces), options.steps)),
             checkpoint::AtomicFile::Name::of_user);
  write_to_stdout(fmt::format("the timeline of {} is in {}: open it at https://ui.perfetto.dev or chrome://tracing\n",
                              count_of(static_cast<std::int64_t>(ranks), "rank"), file));
}

}  // namespace

std::vector<RunTrace> last_steps(std::vector<RunTrace> traces, std::size_t steps) {
  if (steps == 0 || traces.empty()) return traces;
  std::erase_if(traces, [newest = traces.back().start](const RunTrace& one) { return one.start != newest; });
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (const RunTrace& trace : traces) {
    last = std::min(last, trace.rank.steps.empty() ? std::int64_t{-1} : trace.rank.steps.back().number);
  }
  const std::int64_t first = last - static_cast<std::int64_t>(steps) + 1;
  for (RunTrace& trace : traces) {
    trace::RankTrace& rank = trace.rank;
    // The end of the step before this one: data and forward count towards the step that uses them.
    std::int64_t begin = std::numeric_limits<std::int64_t>::min();
    for (const trace::TracedStep& step : rank.steps) {
      if (step.number < first) begin = step.end;
    }
    std::erase_if(rank.steps, [first](const trace::TracedStep& step) { return step.number < first; });
    std::erase_if(rank.spans, [begin](const trace::TracedSpan& span) { return span.begin < begin; });
  }
  return traces;
}

void write_live_trace(const FoundRun& run, const RunsOptions& options) {
  RunTraces traces = traces_of(run);
  if (traces.traces.empty()) {
    throw Error(
        fmt::format("{}: no rank on this host has a trace yet: none has called init_process_group; try again when a "
                    "rank has called it{}",
                    run.run_id, traces.problems.empty() ? "" : "; " + traces.problems.front()));
  }
  write_trace(std::move(traces), run.run_id, options);
}

void write_left_trace(const RunsOptions& options) {
  RunTraces traces = read_traces(options.run);
  if (traces.traces.empty())
    throw Error(fmt::format("no rank has left a trace in {}; give the --log-dir of a run", options.run));
  const std::string run_id = traces.traces.front().rank.identity.run_id;
  write_trace(std::move(traces), run_id.empty() ? "run" : run_id, options);
}

}  // namespace lockstep::launcher
