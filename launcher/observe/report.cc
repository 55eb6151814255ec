// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/observe/event_file.h"
#include "launcher/observe/run_report.h"
#include "launcher/observe/timeline.h"
#include "launcher/observe/trace_exchange.h"
#include "launcher/output/log_folder.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

// Describes the straggler of the last start that has one, and the first finding of the last start that has one.
std::vector<std::string> news_of(const RunReport& report) {
  std::vector<std::string> news(2);
  for (const ReportedStart& start : report.starts) {
    if (start.straggler) news[0] = describe(*start.straggler);
    if (!start.findings.empty()) news[1] = trace::describe(start.findings.front());
  }
  std::erase(news, "");
  return news;
}

// Returns true if every rank of the last start has left a trace.
bool has_every_rank(const RunTraces& traces) {
  if (traces.traces.empty()) return false;
  const RunTrace& last = traces.traces.back();
  const auto ranks = std::ranges::count(traces.traces, last.start, &RunTrace::start);
  return ranks == last.rank.identity.world_size;
}

int write_comparison(const ReportOptions& options) {
  std::vector<NamedReport> runs;
  for (const std::string& folder : options.folders) runs.emplace_back(folder, read_report(folder));
  const std::string file = options.file.empty() ? "compare.html" : options.file;
  write_file(file, as_page(runs), checkpoint::AtomicFile::Name::of_user);
  write_to_stdout(fmt::format("{}: {} side by side\n", file, count_of(std::ssize(runs), "run")));
  return 0;
}

// Writes what is beside a report's page.
void write_into(const fs::path& folder, const RunReport& report) {
  write_file((folder / "report.jsonl").native(), as_json_lines(report));
  write_event_file(folder / kEventFolder, report);
}

}  // namespace

int report_command(const ReportOptions& options) {
  return exit_code_of("report", kExitUsage, [&] {
    if (options.folders.size() > 1) return write_comparison(options);
    const fs::path folder(options.folders.front());
    const RunReport report = read_report(folder);
    const std::string page = options.file.empty() ? (folder / "report.html").native() : options.file;
    using Name = checkpoint::AtomicFile::Name;
    write_file(page, as_page(report), options.file.empty() ? Name::of_lockstep : Name::of_user);
    std::string text =
        fmt::format("{}: {}, {}\n", page, count_of(report.world_size, "rank"), count_of(report.totals().steps, "step"));
    try {
      write_into(folder, report);
    } catch (const Error& error) {  // the page that was asked for elsewhere is there
      if (options.file.empty()) throw;
      text += fmt::format("without report.jsonl and {}: {}\n", kEventFolder, error.what());
    }
    for (const std::string& problem : report.problems) text += printable(problem) + "\n";
    for (const std::string& line : news_of(report)) text += line + "\n";
    write_to_stdout(text);
    return 0;
  });
}

std::string make_trace_folder(const RunOptions& options, int start) {
  const std::string folder = trace_folder(options.log_dir, options.trace);
  if (folder.empty()) return {};
  if (!options.trace.empty() && fs::is_directory(options.trace)) {  // reported before hours of training, not after them
    throw InvalidArgument(
        fmt::format("--trace {}: that is a folder; give the name of a file in this folder", options.trace));
  }
  if (!options.trace.empty()) require_regular(options.trace);
  const std::string path = log_folder(fs::absolute(folder).lexically_normal().native(), start);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw SystemError("make the folder " + path, error.value());
  return path;
}

namespace {

// Limits for node rank 0 to collect all traces, and for the other hosts to get its answer.
constexpr std::chrono::seconds kTaking{30};
constexpr std::chrono::seconds kGiving{60};
// Interval between two checks for a signal.
constexpr std::chrono::milliseconds kLook{200};

std::vector<TraceFile> files_of(const RunTraces& traces) {
  std::vector<TraceFile> files;
  for (const RunTrace& trace : traces.traces) files.push_back({trace.start, trace.rank.identity.rank});
  return files;
}

void write_traces(const RunTraces& traces, const std::string& file, Console& console) {
  if (traces.traces.empty()) {
    console.message(
        fmt::format("no trace in {}: no rank has called init_process_group, or the folder of the traces had no room; "
                    "call init_process_group in the program, or make room",
                    file));
    return;
  }
  write_file(file, timeline_of(traces.traces));
  const RunReport report = report_of(traces);
  const auto ranks = report.starts.back().ranks.size();
  console.message(fmt::format("the timeline of {} is in {}", count_of(static_cast<std::int64_t>(ranks), "rank"), file));
  for (const std::string& line : news_of(report)) console.message(line);
}

// Removes the folders that make_trace_folder() made and in which no rank has left a trace.
void remove_empty_folders(const std::string& folder) {
  std::error_code error;  // a folder that is not empty stays
  for (int i = 1; fs::exists(log_folder(folder, i), error); ++i) fs::remove(log_folder(folder, i), error);
  fs::remove(folder, error);
}

// Writes node rank 0's timeline, with the traces that the other hosts deliver.
void write_of_all_hosts(store::Store& store, const RankMap& hosts, const std::string& folder, const std::string& file,
                        const std::function<bool()>& is_called_off, Console& console) {
  TakenTraces taken(store, static_cast<int>(hosts.size()));
  auto has = TakenTraces::Has::none;
  try {
    RunTraces traces = read_traces(folder);
    if (has_every_rank(traces)) {  // the hosts share the folder
      has = TakenTraces::Has::all;
    } else {
      taken.take(folder, files_of(traces),
                 {.deadline = Deadline::after(kTaking), .is_called_off = is_called_off, .look = kLook});
      traces = read_traces(folder);
      has = TakenTraces::Has::those_there;
    }
    write_traces(traces, file, console);
  } catch (const Error&) {
    taken.end(TakenTraces::Has::none);
    throw;
  }
  taken.end(has);
}

// Returns true if node rank 0's timeline has the traces of this host.
bool is_taken(store::Store& store, const RankMap& hosts, int node_rank, const std::string& folder,
              const RunTraces& traces, const std::function<bool()>& is_called_off, Console& console) {
  // All launchers together check at most a thousand times a second.
  const auto look = std::max<std::chrono::nanoseconds>(kLook, hosts.size() * std::chrono::milliseconds(1));
  try {
    return give_traces(store, node_rank, folder, files_of(traces),
                       {.deadline = Deadline::after(kGiving), .is_called_off = is_called_off, .look = look});
  } catch (const Error& error) {
    console.message(
        fmt::format("node rank 0 has not taken the traces of this host: {}; this launcher writes the timeline of this "
                    "host's ranks to a file on this host",
                    error.what()));
    return false;
  }
}

}  // namespace

std::optional<int> write_timeline(const RunOptions& options, const RankMap& hosts, int node_rank, store::Store* store,
                                  Console& console, Signals& signals) {
  if (options.trace.empty()) return std::nullopt;
  std::string file = options.trace;
  std::optional<int> signal;
  const auto is_called_off = [&] {
    if (signal) return true;
    signal = signals.take_end();
    if (signal)
      console.message(fmt::format(
          "{} was received: this launcher waits for traces no longer, so the timeline may lack ranks of other hosts",
          signal_name(*signal)));
    return signal.has_value();
  };
  try {
    const std::string folder = trace_folder(options.log_dir, options.trace);
    const HostSlots& own = hosts[static_cast<std::size_t>(node_rank)];
    if (store != nullptr && node_rank == 0) {
      write_of_all_hosts(*store, hosts, folder, file, is_called_off, console);
    } else if (const RunTraces traces = read_traces(folder, own);
               store != nullptr && is_taken(*store, hosts, node_rank, folder, traces, is_called_off, console)) {
      console.message(fmt::format("the timeline of this host's ranks is in the file that the launcher of {} writes",
                                  describe_host(hosts, 0)));
    } else {
      file = timeline_file(options.trace, hosts.size(), node_rank);
      write_traces(traces, file, console);
    }
  } catch (const Error& error) {
    console.message(
        fmt::format("no timeline was written to {}: {}; if that file can't be written, give another --trace FILE", file,
                    error.what()));
  }
  if (options.log_dir.empty()) remove_empty_folders(trace_folder({}, options.trace));
  return signal;
}

}  // namespace lockstep::launcher
