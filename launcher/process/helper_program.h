// SPDX-License-Identifier: Apache-2.0
// Runs a small program that may hang, crash or print nonsense, with a time limit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.h"
#include "launcher/process/guardian.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

struct HelperResult {
  std::optional<ExitStatus> ending;  // nullopt: it was killed at the deadline, with all of its process group
  std::string out;                   // at most kMostOutput bytes of each stream; the rest is discarded
  std::string err;
};

inline constexpr std::size_t kMostOutput = std::size_t{1} << 20;

// `command` is argv; its first word is the path. The program inherits this process's environment, except for the
// store's secret, and reads no input. Call it from the main thread: the program dies with it, and the program's
// children too if there is a guardian. Throws ExecError if the program can't be executed, SystemError.
HelperResult run_helper(const std::vector<std::string>& command, const Deadline& deadline,
                        const Guardian* guardian = nullptr);

}  // namespace lockstep::launcher
