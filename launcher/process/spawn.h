// SPDX-License-Identifier: Apache-2.0
// Starts one rank.
#pragma once

#include <sched.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/open_files.h"

namespace lockstep::launcher {

struct SpawnRequest {
  std::string path;
  std::vector<std::string> arguments;    // with argv[0]
  std::vector<std::string> environment;  // "NAME=value"
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  int inherited_fd = -1;                     // stays open under its number
  int registration_fd = -1;                  // gets the process id before the program starts
  sigset_t signal_mask{};                    // what the program starts with
  net::OpenFilesLimit open_files;            // the same
  std::optional<cpu_set_t> processors = {};  // that it is bound to; nothing: as this process
};

struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

// The program can't be executed: error_number() says why.
class ExecError : public SystemError {
 public:
  using SystemError::SystemError;
};

// Forks and executes: a direct child, in a process group of its own, that dies when the calling thread does. Returns
// once the program has started. Call it from the main thread only; other threads may exist.
// Throws ExecError, or SystemError if not even a process could be had.
Spawned spawn(const SpawnRequest& request);

}  // namespace lockstep::launcher
