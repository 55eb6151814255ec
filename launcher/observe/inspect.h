// SPDX-License-Identifier: Apache-2.0
// `lockstep inspect`: where each rank of a running job is, to the line of its stack.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/runs/run_client.h"

namespace lockstep::launcher {

// On stdout. Throws Error.
void inspect(const FoundRun& run);

// What stacks are made by: eu-stack of elfutils, or gdb, with their arguments; empty if neither is on PATH.
std::vector<std::string> stack_command(pid_t pid);
// The threads of a process, a line each: what the kernel says that they do, and where in it they wait. Empty if it has
// ended.
std::vector<std::string> threads_of(pid_t pid);

}  // namespace lockstep::launcher
