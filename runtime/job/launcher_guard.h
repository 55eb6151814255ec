// SPDX-License-Identifier: Apache-2.0
// A rank never outlives the launcher that started it.
//
// `lockstep run` and mpirun may be killed with -9, and can't end their ranks then. If the launcher is the parent, the
// kernel kills this process with it (PR_SET_PDEATHSIG). If a wrapper script is between, a thread watches: the pipe that
// `lockstep run` alone holds open, or the process of mpirun. A thread also watches if another thread than the main one
// makes the guard: the kernel's signal is tied to the life of the thread that asked for it. A process started by hand
// is left alone.
//
// The contract with `lockstep run`: LOCKSTEP_LAUNCHER_PID is its pid; LOCKSTEP_LAUNCHER_FD, "FD" or "FD:INODE", is the
// read end of a pipe whose only write end it holds. INODE lets the library see that a wrapper closed FD and something
// else took its number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep {

struct Ancestor {
  int pid = 0;
  std::string command;  // as /proc/PID/comm has it
};

// This process's parent, its parent, and so on, as far as /proc shows.
std::vector<Ancestor> ancestors_of_this_process();

struct LauncherGuard {
  enum class Kind { none, death_signal, watch_pipe, watch_process };
  Kind kind = Kind::none;
  int pid = 0;                         // death_signal, watch_process
  int fd = -1;                         // watch_pipe
  std::optional<std::uint64_t> inode;  // watch_pipe, if told
  std::string why;                     // for the debug log
};

// Pure. Throws InvalidArgument for bad values.
LauncherGuard plan_launcher_guard(const Environment& environment, const std::vector<Ancestor>& ancestors);

// Puts it up, once per process: later calls do nothing. If the launcher has gone already, this process ends here, by
// SIGKILL as it would have a moment later.
void install_guard(const LauncherGuard& guard);

}  // namespace lockstep
