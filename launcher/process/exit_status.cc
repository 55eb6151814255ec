// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/exit_status.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/signal_name.h"
#include "runtime/job/exit_code.h"

namespace lockstep::launcher {

bool ExitStatus::is_consequence() const { return !by_signal && value == kExitPeerLost; }

bool ExitStatus::may_be_killed() const {
  return by_signal ? value == SIGKILL : ok() || has_no_code || value == 128 + SIGKILL;
}

std::string ExitStatus::describe() const {
  if (program != 0 && has_no_code) {
    return fmt::format("lost its program (pid {}; the command around it returned 0) to a signal or _exit()", program);
  }
  if (program != 0 && !ok()) {
    return fmt::format("exited with code {} in its program (pid {}; the command around it returned 0)", value, program);
  }
  if (!by_signal) return fmt::format("exited with code {}", value);
  return fmt::format("was killed by signal {} ({}){}", value, signal_name(value), dumped_core ? ", core dumped" : "");
}

std::string ExitStatus::describe_as_consequence() const {
  return is_consequence() ? fmt::format("{}: it lost another rank", describe()) : describe();
}

std::string ExitStatus::hint() const {
  if (program != 0 && !ok()) {
    return "a shell returns the code of the last command of a pipe; with 'set -o pipefail', bash returns the program's "
           "code";
  }
  if (!by_signal) {
    if (value == kExitPeerLost)
      return "code 75 says that this rank lost another rank; this rank's own line above says which rank, and why";
    if (value == 127) {
      return "a shell ends with code 127 if it did not find a command, and the dynamic loader if it did not find a "
             "library: the line above names which, and ldd lists a program's libraries";
    }
    if (value == 126)
      return "a shell ends with code 126 if a command can't be executed: see whether the file is executable";
    return {};
  }
  switch (value) {
    case SIGXCPU: return "the rank has used up its CPU time: raise the limit (ulimit -t)";
    case SIGKILL:
      if (cpu_limit > 0) {
        return fmt::format(
            "if nobody killed the rank, it has used up its {} s of CPU time: raise the limit (ulimit -t)", cpu_limit);
      }
      return "if nobody killed it, the kernel may have been out of memory: dmesg | grep -i 'killed process'";
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return "run one rank of the program under gdb, or build it with -fsanitize=address, to see where it fails";
    default: return {};
  }
}

ExitStatus ending_of_rank(ExitStatus command, int pid, const std::optional<RankProgram>& program) {
  if (!command.ok() || !program || program->pid == pid) return command;
  command.program = program->pid;
  command.has_no_code = !program->has_left && !program->exit_code;
  command.value = command.has_no_code ? 1 : program->exit_code.value_or(0);
  return command;
}

std::optional<ExitStatus> reap(int pidfd) {
  siginfo_t info{};
  const int result = uninterrupted([&] { return waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG); });
  if (result != 0) throw SystemError("waitid for a rank", errno);
  if (info.si_pid == 0) return std::nullopt;
  return ExitStatus{
      .by_signal = info.si_code != CLD_EXITED, .value = info.si_status, .dumped_core = info.si_code == CLD_DUMPED};
}

}  // namespace lockstep::launcher
