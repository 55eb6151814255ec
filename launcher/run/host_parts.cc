// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/host_parts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "launcher/run/job_report.h"
#include "launcher/run/shared_gpu.h"
#include "launcher/run/spawn.h"
#include "runtime/base/variables.h"

namespace lockstep::launcher {
void say_before_the_start(const RunOptions& options, const Preparation& preparation, const Environment& environment,
                          Console& console) {
  if (!preparation.count.reason.empty()) {
    console.message(fmt::format("{} ({})", count_of(preparation.count.ranks, "rank"), preparation.count.reason));
  }
  for (const auto& line : misspelt_variables(environment)) console.message(line);
  if (!options.oversubscribe_gpu) return;
  console.message(
      "--oversubscribe-gpu: ranks may share a GPU and then talk over sockets: for correctness, not for speed");
  for (const auto& line : variables_that_win(environment)) console.message(line);
}

HostParts::HostParts()
    : console(STDOUT_FILENO, STDERR_FILENO),
      guardian({.variable = "LOCKSTEP_LAUNCHER_FD=" + life.name(),
                .life_fd = life.pipe().read_end.get(),
                .life_end = life.pipe().write_end.get()}) {}

StartOutcome run_ranks(const RunOptions& options, const Preparation& preparation, JobOptions job_options,
                       const Environment& environment, HostParts& parts, const MakeControl& make_control) {
  job_options.program = preparation.program.path;
  job_options.command = options.command;
  job_options.log_dir = options.log_dir;
  job_options.grace = options.grace;
  job_options.stop_timeout = stop_timeout_of(options, environment);
  job_options.contract.visible_devices = preparation.visible_devices;
  std::optional<Job> job;
  const auto control = make_control([&job](int rank) { return job->facts_of(rank); });
  job.emplace(std::move(job_options), environment, parts.console, parts.signals, parts.guardian, parts.log, parts.life,
              *control);
  const int code = job->run();
  const auto again = control->again();
  if (!again) parts.guardian.disarm();
  return {code, again};
}

}  // namespace lockstep::launcher
