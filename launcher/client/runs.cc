// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "launcher/base/columns.h"
#include "launcher/base/system.h"
#include "launcher/client/inspect.h"
#include "launcher/client/live_trace.h"
#include "launcher/client/top.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/net/connection.h"
#include "runtime/net/stream.h"

namespace lockstep::launcher {
namespace {

constexpr int kExitNoSuchRun = 1;

// Returns "3s", "12m", "5h03m", "2d04h".
std::string describe_age(std::int64_t milliseconds) {
  const auto seconds = milliseconds / 1000;
  if (seconds < 60) return fmt::format("{}s", seconds);
  if (seconds < 3600) return fmt::format("{}m{:02}s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{}h{:02}m", seconds / 3600, seconds / 60 % 60);
  return fmt::format("{}d{:02}h", seconds / 86400, seconds / 3600 % 24);
}

std::string describe_ranks_of(const RunFacts& facts) {
  const int last = facts.first_rank + facts.ranks - 1;
  return facts.ranks == 1 ? fmt::format("{} of {}", facts.first_rank, facts.world_size)
                          : fmt::format("{}-{} of {}", facts.first_rank, last, facts.world_size);
}

std::vector<std::string> row_of(const FoundRun& run) {
  const std::string pid = run.pid == 0 ? "-" : fmt::format("{}", run.pid);  // 0: in another pid namespace
  if (!run.facts) return {run.run_id, pid, "?", "?", "?", "?", "?", "(does not answer)"};
  const RunFacts& facts = *run.facts;
  return {run.run_id,
          pid,
          describe_ranks_of(facts),
          fmt::format("{} of {}", facts.node_rank, facts.hosts),
          describe_age(facts.age_ms),
          facts.step < 0 ? "-" : fmt::format("{}", facts.step),
          facts.log_dir.empty() ? "-" : facts.log_dir,
          printable(facts.command)};
}

void complain_of_silent(const std::vector<FoundRun>& runs) {
  for (const FoundRun& run : runs) {
    if (!run.facts) print_error("lockstep ps: " + describe_silent(run));
  }
}

void show_log(const FoundRun& run, const RunsOptions& options) {
  net::Connection launcher(ask(
      run, {.what = RunRequest::What::logs, .lines = std::min(options.lines, kMostLines), .follow = options.follow}));
  // The log itself may be silent for hours, so only the header, which a launcher sends at once, has a time limit.
  if (!net::wait_readable(launcher.fd(), Deadline::after(kAnswerLimit))) {
    throw Error(fmt::format(
        "{} (pid {}) does not answer; its launcher may be stopped or busy: try again, or see what that process does",
        run.run_id, run.pid));
  }
  bool has_begun = false;
  try {
    while (true) {
      launcher.receive(Deadline::never());
      if (!has_begun) {
        if (launcher.input().size() < kLogsHeader.size()) continue;
        if (!launcher.input().starts_with(kLogsHeader)) {
          throw Error(fmt::format(
              "{} sends an answer that this lockstep can't read; use the version of lockstep that started the run",
              run.run_id));
        }
        launcher.consume(kLogsHeader.size());
        has_begun = true;
      }
      write_to_stdout(launcher.input());
      launcher.consume(launcher.input().size());
    }
  } catch (const net::ConnectionClosed&) {
  }
  if (!has_begun)
    throw Error(fmt::format("{} has ended, or answers no more; lockstep ps shows the runs that answer", run.run_id));
}

void ask_to_stop(const FoundRun& run) {
  const auto facts = decode_run_facts(answer_to(run, {.what = RunRequest::What::stop}));
  if (!facts)
    throw Error(fmt::format("{} has ended, or answers no more; lockstep ps shows the runs that answer", run.run_id));
  write_to_stdout(
      facts->stops > 1
          ? fmt::format("{}: asked again to stop: the ranks are killed\n", run.run_id)
          : fmt::format(
                "{}: asked to stop; the ranks may take time to save; run lockstep stop again to kill the ranks\n",
                run.run_id));
}

int perform(const RunsOptions& options) {
  if (options.what == RunsOptions::What::trace && std::filesystem::is_directory(options.run)) {
    write_left_trace(options);
    return 0;
  }
  const auto runs = find_runs();
  if (options.what == RunsOptions::What::ps) {
    write_to_stdout(options.json ? as_json(runs) : as_table(runs));
    if (!options.json) complain_of_silent(runs);
    return 0;
  }
  const FoundRun run = choose_run_that_answers(runs, options.run);
  switch (options.what) {
    case RunsOptions::What::ps: break;
    case RunsOptions::What::top: show_top(run, options); break;
    case RunsOptions::What::inspect: inspect(run); break;
    case RunsOptions::What::trace: write_live_trace(run, options); break;
    case RunsOptions::What::logs: show_log(run, options); break;
    case RunsOptions::What::stop: ask_to_stop(run); break;
  }
  return 0;
}

}  // namespace

std::string as_table(const std::vector<FoundRun>& runs) {
  std::vector<std::vector<std::string>> rows = {{"RUN", "PID", "RANKS", "HOST", "AGE", "STEP", "LOGS", "COMMAND"}};
  for (const FoundRun& run : runs) rows.push_back(row_of(run));
  std::string text;
  for (const std::string& line : in_columns(rows)) text += line + "\n";
  return text;
}

std::string as_json(const std::vector<FoundRun>& runs) {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson list = OrderedJson::array();
  for (const FoundRun& run : runs) {
    OrderedJson one = {{"run_id", run.run_id},
                       {"pid", run.pid == 0 ? OrderedJson() : OrderedJson(run.pid)},
                       {"answers", run.facts.has_value()}};
    if (run.facts) {
      const RunFacts& facts = *run.facts;
      one.update({{"host", facts.host},
                  {"node_rank", facts.node_rank},
                  {"hosts", facts.hosts},
                  {"first_rank", facts.first_rank},
                  {"ranks", facts.ranks},
                  {"world_size", facts.world_size},
                  {"start", facts.start},
                  {"age_s", static_cast<double>(facts.age_ms) / 1000},
                  {"step", facts.step < 0 ? OrderedJson() : OrderedJson(facts.step)},
                  {"log_dir", facts.log_dir.empty() ? OrderedJson() : OrderedJson(facts.log_dir)},
                  {"command", facts.command}});
    }
    list.push_back(std::move(one));
  }
  return list.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

int runs_command(const RunsOptions& options) {
  // In the order of RunsOptions::What.
  constexpr const char* kNames[] = {"ps", "top", "inspect", "trace", "logs", "stop"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RunsOptions::What::stop) + 1);
  return exit_code_of(kNames[static_cast<std::size_t>(options.what)], kExitNoSuchRun, [&] { return perform(options); });
}

}  // namespace lockstep::launcher
