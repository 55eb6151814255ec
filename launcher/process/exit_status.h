// SPDX-License-Identifier: Apache-2.0
// How a process ended, in words and as an exit code.
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
  // Pid of the rank's program, where the launcher's child is a command around it that returned 0; 0: it is the child
  // itself, or not known. The value is the program's then, or 1 if it died without one, of a signal or by _exit().
  int program = 0;
  bool has_no_code = false;
  std::int64_t cpu_limit = 0;  // seconds that the kernel lets the process compute before it sends SIGKILL; 0: no limit

  // The rank says itself that another one failed before it.
  bool is_consequence() const;
  bool ok() const { return !by_signal && value == 0; }
  // As a shell reports it: 128 + N for signal N.
  int exit_code() const { return by_signal ? 128 + value : value; }
  // "exited with code 3", "was killed by signal 9 (SIGKILL)".
  std::string describe() const;
  // The same of a rank that ended after another one had failed.
  std::string describe_as_consequence() const;
  // What usually is behind it and what to do, or nothing.
  std::string hint() const;
};

// How a rank ended whose process, with that pid, is a command that ended so, perhaps around the rank's program.
ExitStatus ending_of_rank(ExitStatus command, int pid, const std::optional<RankProgram>& program);

// Reads how the child behind `pidfd` ended, and frees its id. Nothing if it still runs. Throws SystemError.
std::optional<ExitStatus> reap(int pidfd);

}  // namespace lockstep::launcher
