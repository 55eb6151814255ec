// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/host_parts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/observe/report.h"
#include "launcher/placement/shared_gpu.h"
#include "launcher/process/spawn.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/printable.h"
#include "runtime/base/variables.h"
#include "runtime/job/stop_signals.h"

namespace lockstep::launcher {
namespace {

// Hosts of one job may have different flags, so only a job on one host may be rejected.
void require_shown_ranks(const RunOptions& options, const RankMap& hosts, Console& console) {
  if (options.shown_ranks.fits(world_size(hosts))) return;
  const std::string problem = fmt::format("--ranks {}: the job has {}, from 0 to {}", options.shown_ranks.text(),
                                          count_of(world_size(hosts), "rank"), world_size(hosts) - 1);
  if (hosts.size() == 1) throw InvalidArgument(problem);
  console.message(problem);
}

JobOutput& open_output(const RunOptions& options, const JobOptions& job, HostParts& parts) {
  const auto hosts = static_cast<int>(job.contract.hosts.size());
  if (!parts.output) {
    parts.output.emplace(OutputOptions{.log_dir = options.log_dir,
                                       .tee = options.tee,
                                       .shown = options.shown_ranks,
                                       .keep_last_lines = job.keep_last_lines,
                                       .hosts = std::max(hosts, options.nodes),
                                       .start = job.contract.start(),
                                       .node_rank = job.contract.node_rank},
                         parts.console);
  }
  return *parts.output;
}

RunFacts facts_of(const RunOptions& options, const JobOptions& job) {
  const Contract& contract = job.contract;
  RunFacts facts{.run_id = contract.run_id,
                 .pid = getpid(),
                 .host = host_name(),
                 .first_rank = contract.own().first_rank,
                 .ranks = contract.own().ranks,
                 .world_size = world_size(contract.hosts),
                 .hosts = static_cast<int>(contract.hosts.size()),
                 .node_rank = contract.node_rank,
                 .start = contract.start(),
                 .command = fmt::format("{}", fmt::join(options.command, " ")),
                 .is_crowded = job.is_crowded};
  if (!options.log_dir.empty()) facts.log_dir = std::filesystem::absolute(options.log_dir).lexically_normal();
  return facts;
}

// Makes the server for `lockstep ps`, `top`, `logs` and `stop`. A failure is reported, and the job runs without it.
void serve_run(const RunOptions& options, const JobOptions& job, HostParts& parts) {
  try {
    if (!parts.server) {
      parts.server = std::make_unique<RunServer>(
          job.contract.run_id, [] { kill(getpid(), SIGTERM); }, parts.output->recent());
    }
  } catch (const SystemError& error) {
    parts.console.message(fmt::format(
        "lockstep ps, top, logs and stop can't reach this run, which continues without them: {}", error.what()));
    return;
  }
  parts.server->set_run(facts_of(options, job), job.members, job.ask_for_stacks);
}

// Without --tee no other line would appear before the job's end. If stderr was closed, main() has replaced it by a
// descriptor that can't be written; a hint must not make the run fail then.
void say_where_output_goes(const RunOptions& options, const Contract& contract, Console& console) {
  if (options.log_dir.empty() || options.tee.out || options.tee.err) return;
  const bool is_closed = (fcntl(STDERR_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY;
  if (contract.node_rank != 0 || contract.restarts > 0 || is_closed) return;
  console.message(fmt::format("output in {}; follow it {}with: lockstep logs -f {}",
                              (std::filesystem::path(options.log_dir) / "").native(),
                              contract.hosts.size() > 1 ? fmt::format("on host {} ", contract.own().name) : "",
                              printable(contract.run_id, 4096)));
}

// Serves the metrics on the host of the job's store, which has the information about all ranks. Throws as MetricsServer
// does: a user who asks for metrics must learn at once that there are none.
void serve_metrics(const RunOptions& options, const Contract& contract, HostParts& parts) {
  if (!options.metrics || contract.node_rank != 0 || parts.metrics || !parts.server) return;
  parts.metrics =
      std::make_unique<MetricsServer>(*options.metrics, [&server = *parts.server] { return server.report(); });
  parts.console.message(fmt::format("metrics for Prometheus: http://{}/metrics", parts.metrics->address().to_string()));
}

// Withdraws the members of one start: the store that knows them may end before the server that asks it.
class MembersOfOneStart {
 public:
  explicit MembersOfOneStart(RunServer* server) : server_(server) {}
  ~MembersOfOneStart() {
    if (server_ != nullptr) server_->forget_members();
  }
  MembersOfOneStart(const MembersOfOneStart&) = delete;
  MembersOfOneStart& operator=(const MembersOfOneStart&) = delete;

 private:
  RunServer* server_;  // outlives it; may be null
};

}  // namespace

void say_before_the_start(const RunOptions& options, const Preparation& preparation, const Environment& environment,
                          Console& console) {
  if (!preparation.count.reason.empty()) {
    console.message(fmt::format("{} ({})", count_of(preparation.count.ranks, "rank"), preparation.count.reason));
  }
  if (!preparation.crowd.empty()) console.message(preparation.crowd);
  for (const auto& line : unknown_variables(environment)) console.message(line);
  if (!options.oversubscribe_gpu) return;
  console.message(
      "--oversubscribe-gpu: ranks may share a GPU and then talk over sockets: for correctness, not for speed; leave "
      "the flag out to train");
  for (const auto& line : variables_that_win(environment)) console.message(line);
}

HostParts::HostParts()
    : console(STDOUT_FILENO, STDERR_FILENO),
      guardian({.variable = "LOCKSTEP_LAUNCHER_FD=" + life.name(),
                .life_fd = life.pipe().read_end.get(),
                .life_end = life.pipe().write_end.get()}) {}

StartOutcome run_ranks(const RunOptions& options, const Preparation& preparation, JobOptions job_options,
                       const Environment& environment, HostParts& parts, const MakeControl& make_control,
                       store::Store* store) {
  require_shown_ranks(options, job_options.contract.hosts, parts.console);
  job_options.output = &open_output(options, job_options, parts);
  if (!preparation.bindings.empty()) {
    const int first_rank = job_options.contract.own().first_rank;
    parts.console.message(fmt::format("--bind {}: {}", options.binding == Binding::core ? "core" : "numa",
                                      describe_bindings(preparation.bindings, first_rank)));
  }
  job_options.contract.trace_dir = make_trace_folder(options, job_options.contract.start());
  job_options.is_crowded = !preparation.crowd.empty();
  job_options.program = preparation.program.path;
  job_options.command = options.command;
  job_options.grace = options.grace;
  job_options.stop_timeout = stop_timeout(environment);
  job_options.contract.visible_devices = preparation.visible_devices;
  job_options.contract.bindings = preparation.bindings;
  const RankMap hosts = job_options.contract.hosts;
  const int node_rank = job_options.contract.node_rank;
  serve_run(options, job_options, parts);
  if (parts.server) say_where_output_goes(options, job_options.contract, parts.console);
  serve_metrics(options, job_options.contract, parts);
  const MembersOfOneStart members(parts.server.get());
  std::optional<Job> job;
  const auto control = make_control([&job](int rank) { return job->facts_of(rank); });
  job.emplace(std::move(job_options), environment, parts.console, parts.signals, parts.guardian, parts.log, parts.life,
              *control);
  const int code = job->run();
  const auto again = control->again();
  std::optional<int> signal;
  if (!again) signal = write_timeline(options, hosts, node_rank, store, parts.console, parts.signals);
  return {code, again, control->late_stop(), signal.has_value()};
}

}  // namespace lockstep::launcher
