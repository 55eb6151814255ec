// SPDX-License-Identifier: Apache-2.0
// Where a process of this host stands: what the kernel says of its threads, and their stacks by a program that can
// tell.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

// More lines are left out, which the last one then says.
inline constexpr std::size_t kMostStackLines = 2000;
inline constexpr std::size_t kMostStackLineBytes = 400;

// Returns the threads of a process as lines_by_thread() has them, and the reason if there are no stacks. The list is
// empty if the process has ended. The process stands still while eu-stack (elfutils) or gdb examines it. Call it on the
// main thread only: that program dies with the thread that started it. Throws nothing.
std::vector<std::string> threads_and_stacks(pid_t pid, const Deadline& deadline) noexcept;

struct ThreadState {
  pid_t id = 0;
  std::string name = {};
  bool is_asleep = false;
  std::string what = {};  // it does, and where in the kernel it waits
};
// A line for each thread, its stack below it: first the main thread's, which is that of `pid`. lockstep's own threads
// that wait for work (kQuietThread) are one line at the end; before it stand the stacks of threads that are not among
// `threads`. `frames`: of frames_in(). Pure.
std::vector<std::string> lines_by_thread(pid_t pid, std::vector<ThreadState> threads,
                                         const std::vector<std::string>& frames);

// Of what eu-stack or gdb writes the threads and frames, without what it says of itself; a frame with its source's
// line, which eu-stack writes below it. Pure.
std::vector<std::string> frames_in(std::string_view text);

// How long stacks_of_hung_rank() takes at most.
inline constexpr std::chrono::seconds kHungLimit{10};
// The first lines of the stacks alone; none where there is no program for it, the process is stopped, or whatever else
// is in the way.
std::vector<std::string> stacks_of_hung_rank(pid_t pid) noexcept;

}  // namespace lockstep::launcher
