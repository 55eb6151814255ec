// SPDX-License-Identifier: Apache-2.0
// How a process ended, in words and as an exit code.
#pragma once

#include <string>

namespace lockstep::launcher {

struct ExitStatus {
  bool by_signal = false;
  int value = 0;  // the signal's number or the exit code
  bool dumped_core = false;

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

}  // namespace lockstep::launcher
