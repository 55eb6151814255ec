// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <variant>

#include "launcher/base/exit_codes.h"
#include "launcher/bisect/bisect_step.h"
#include "launcher/client/runs.h"
#include "launcher/doctor/doctor.h"
#include "launcher/doctor/host_trial.h"
#include "launcher/flags/command_line.h"
#include "launcher/hosts/agent_input.h"
#include "launcher/hosts/remote_hosts.h"
#include "launcher/hosts/several_hosts.h"
#include "launcher/observe/report.h"
#include "launcher/placement/preparation.h"
#include "launcher/replay/replay.h"
#include "launcher/run/run.h"
#include "launcher/serve/serve.h"
#include "launcher/snapshots/snapshots.h"

namespace {

using namespace lockstep::launcher;

// A descriptor opened later must never become 0, 1 or 2: ranks get those replaced. A closed stream is replaced by one
// that can't be written, so that lost output is noticed.
bool standard_streams_open() {
  for (int fd = 0; fd < 3; ++fd) {
    // Without O_CLOEXEC, as descriptors 0, 1 and 2 are. NOLINTNEXTLINE(android-cloexec-open)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd) return false;
  }
  return true;
}

// `input` is the standard input of a launcher that another `lockstep run` has started; else null.
int run_command(const RunOptions& options, AgentInput* input = nullptr) {
  return exit_code_of_run([&](const lockstep::Environment& environment) {
    if (input == nullptr && options.starts_launchers()) return start_remote_hosts(options, environment);
    const lockstep::Environment of_ranks = environment_of_ranks(options, environment);
    if (input != nullptr || options.nodes > 1) return start_several_hosts(options, of_ranks, input);
    return start_one_host(options, of_ranks);
  });
}

int run(int count, char** arguments) {
  const auto parsed = parse_command_line({arguments + 1, arguments + count}, lockstep::Environment::of_process());
  if (const auto* answer = std::get_if<Answer>(&parsed)) {
    std::fputs(answer->err.c_str(), stderr);
    if (std::fputs(answer->out.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
      std::perror("lockstep: write to stdout");
      return 1;
    }
    return answer->exit_code;
  }
  if (const auto* options = std::get_if<ServeOptions>(&parsed)) return serve_command(*options);
  if (const auto* options = std::get_if<DoctorOptions>(&parsed)) return doctor_command(*options);
  if (const auto* options = std::get_if<SnapshotsOptions>(&parsed)) return snapshots_command(*options);
  if (const auto* options = std::get_if<ReportOptions>(&parsed)) return report_command(*options);
  if (const auto* options = std::get_if<BisectStepOptions>(&parsed)) return bisect_step_command(*options);
  if (const auto* options = std::get_if<ReplayOptions>(&parsed)) {
    return replay_command(*options, [](const RunOptions& of) { return run_command(of); });
  }
  if (const auto* options = std::get_if<RunsOptions>(&parsed)) return runs_command(*options);
  if (std::holds_alternative<AgentOptions>(parsed)) {
    return agent_command({.run = [](AgentInput& input, const RunOptions& of) { return run_command(of, &input); },
                          .examine = doctor::run_host_trial});
  }
  return run_command(std::get<RunOptions>(parsed));
}

}  // namespace

int main(int count, char** arguments) {
  if (!standard_streams_open()) return lockstep::launcher::kExitInternal;
  try {
    return run(count, arguments);
  } catch (const std::bad_alloc&) {
    std::fputs("lockstep: out of memory; raise the limits on memory of this process (ulimit -v) or its container\n",
               stderr);
  } catch (const std::exception& error) {  // an exception that lockstep does not define
    std::fprintf(stderr, "lockstep: %s\n", error.what());
  }
  return lockstep::launcher::kExitInternal;
}
