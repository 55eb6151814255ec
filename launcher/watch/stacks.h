// SPDX-License-Identifier: Apache-2.0
// Where a process of this host stands: what the kernel says of its threads, and their stacks by a program that can
// tell.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

// The threads of a process, a line each: what they do, and where in the kernel they wait. Empty if it has ended.
std::vector<std::string> threads_of(pid_t pid);

// Whether eu-stack (elfutils) or gdb is installed.
bool can_show_stacks();

struct Stacks {
  std::vector<std::string> lines = {};  // of threads and their frames, the main thread's first
  std::string problem = {};             // why there are none
};
// The process stands still meanwhile. Main thread only: the program dies with it. Throws SystemError.
Stacks stacks_of(pid_t pid, const Deadline& deadline);

// Of a rank that hangs: the first lines of the above; none where there is no program for it, the process is stopped, or
// whatever else is in the way. Waits for some seconds at most, and throws nothing.
std::vector<std::string> stack_of_hung_rank(pid_t pid) noexcept;

}  // namespace lockstep::launcher
