// SPDX-License-Identifier: Apache-2.0
// The position of a process on this host: its threads' states from the kernel, and their stacks from a debugger.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

// Limit of the lines; the last one states how many are left out.
inline constexpr std::size_t kMostStackLines = 2000;
inline constexpr std::size_t kMostStackLineBytes = 400;

// Returns the threads of a process as lines_by_thread() has them, and the reason if there are no stacks. The list is
// empty if the process has ended. The process stands still while eu-stack (elfutils) or gdb examines it. Call it on the
// main thread only: the debugger dies with the thread that started it. Throws nothing.
std::vector<std::string> threads_and_stacks(pid_t pid, const Deadline& deadline) noexcept;

struct ThreadState {
  pid_t id = 0;
  std::string name = {};
  bool is_asleep = false;
  std::string what = {};  // its state, and where in the kernel it waits
};
// Returns a line for each thread, with its stack below: first the main thread's, which is that of `pid`. lockstep's own
// threads that wait for work (kQuietThread) share one line at the end; before it stand the stacks of threads that are
// not among `threads`. `frames` is the result of frames_in(). Pure.
std::vector<std::string> lines_by_thread(pid_t pid, std::vector<ThreadState> threads,
                                         const std::vector<std::string>& frames);

// Returns the threads and frames in the output of eu-stack or gdb, without the debugger's own messages; a frame
// includes its source line, which eu-stack prints below it. Pure.
std::vector<std::string> frames_in(std::string_view text);

// The longest time that stacks_of_hung_rank() takes.
inline constexpr std::chrono::seconds kHungLimit{10};
// Returns only the first lines of the stacks; empty if no debugger is installed, the process is stopped, or the
// debugger fails.
std::vector<std::string> stacks_of_hung_rank(pid_t pid) noexcept;

}  // namespace lockstep::launcher
