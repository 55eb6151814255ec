// SPDX-License-Identifier: Apache-2.0
// `lockstep run`: everything around the job itself.
#pragma once

#include "launcher/command_line.h"

namespace lockstep::launcher {

// Finds the program, hosts the store, runs the ranks. Returns the exit code; says on stderr what went wrong.
// The process must have one thread still.
int run_command(const RunOptions& options);

}  // namespace lockstep::launcher
