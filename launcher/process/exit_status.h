// SPDX-License-Identifier: Apache-2.0
// The end of a process, in words and as an exit code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/job/step_board.h"

namespace lockstep::launcher {

struct ExitStatus {
  bool by_signal = false;
  int value = 0;  // the signal's number or the exit code
  bool dumped_core = false;
  // Pid of the rank's program, if the launcher's child is a command around it that returned 0; 0: the program is the
  // child itself, or not known. If it is set, `value` is the program's exit code, or 1 if the program died without one,
  // of a signal or by _exit().
  int program = 0;
  bool has_no_code = false;
  std::int64_t cpu_limit = 0;  // limit of CPU time in seconds, at which the kernel sends SIGKILL; 0: no limit

  // Returns true if the rank's exit code reports that another rank failed first.
  bool is_consequence() const;
  bool ok() const { return !by_signal && value == 0; }
  // Returns true if SIGKILL ended the program, or may have: a command around it hides signals.
  bool may_be_killed() const;
  // Returns the code as a shell reports it: 128 + N for signal N.
  int exit_code() const { return by_signal ? 128 + value : value; }
  // Returns "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string describe() const;
  // Describes a rank that ended after another one had failed.
  std::string describe_as_consequence() const;
  // Returns the usual reason and the remedy; empty if there is none.
  std::string hint() const;
};

// Returns the ending of a rank. `command` is the ending of its process, which has that pid and may be a command around
// the rank's program.
ExitStatus ending_of_rank(ExitStatus command, int pid, const std::optional<RankProgram>& program);

// Reads how the child behind `pidfd` ended, and frees its pid. Returns nullopt if the child still runs. Throws
// SystemError.
std::optional<ExitStatus> reap(int pidfd);

}  // namespace lockstep::launcher
