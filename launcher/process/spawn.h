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
  int inherited_fd = -1;                     // descriptor that stays open under its number
  int registration_fd = -1;                  // descriptor to which the process id is written before the program starts
  sigset_t signal_mask{};                    // mask with which the program starts
  net::OpenFilesLimit open_files;            // limit with which the program starts
  std::optional<cpu_set_t> processors = {};  // processors of the program; nullopt: those of this process
};

struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

// The program can't be executed; error_number() is the reason.
class ExecError : public SystemError {
 public:
  using SystemError::SystemError;
};

// Forks and executes a direct child in its own process group, which dies when the calling thread does. Returns once the
// program has started. Call it from the main thread only; other threads may exist. Throws ExecError, or SystemError if
// no process could be created.
Spawned spawn(const SpawnRequest& request);

}  // namespace lockstep::launcher
