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

// The threads of a process, a line each: what they do, and where in the kernel they wait. Then their stacks, the main
// thread's first, or why there are none. Empty if it has ended. It stands still while eu-stack (elfutils) or gdb looks.
// Main thread only: that program dies with it. Throws nothing.
std::vector<std::string> threads_and_stacks(pid_t pid, const Deadline& deadline) noexcept;

// Of what eu-stack or gdb writes the threads and frames, without what it says of itself; a frame with its source's
// line, which eu-stack writes below it. Pure.
std::vector<std::string> frames_in(std::string_view text);

// How long stacks_of_hung_rank() takes at most.
inline constexpr std::chrono::seconds kHungLimit{10};
// The first lines of the stacks alone; none where there is no program for it, the process is stopped, or whatever else
// is in the way.
std::vector<std::string> stacks_of_hung_rank(pid_t pid) noexcept;

}  // namespace lockstep::launcher
