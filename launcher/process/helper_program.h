// SPDX-License-Identifier: Apache-2.0
// Runs a small program that may hang, crash or babble, and waits for it no longer than told.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.h"
#include "launcher/process/guardian.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

struct HelperResult {
  std::optional<ExitStatus> ending;  // nothing: it was killed at the deadline, with all of its process group
  std::string out;                   // at most kMostOutput bytes of each, the rest is thrown away
  std::string err;
};

inline constexpr std::size_t kMostOutput = std::size_t{1} << 20;

// `command` is argv, its first word the path. It inherits this process's environment and reads nothing. Call it from
// the main thread: the program dies with it, and what it has started too where there is a guardian. Throws ExecError if
// it can't be executed, SystemError.
HelperResult run_helper(const std::vector<std::string>& command, const Deadline& deadline,
                        const Guardian* guardian = nullptr);

}  // namespace lockstep::launcher
