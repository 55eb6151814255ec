// SPDX-License-Identifier: Apache-2.0
// `lockstep run` on one host: everything around the job itself.
#pragma once

#include <functional>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Finds the program, hosts the store, runs the ranks. Returns the job's exit code. Throws InvalidArgument, SystemError.
// The process must have one thread still.
int start_one_host(const RunOptions& options, const Environment& environment);

// Returns what `start` returns for this process's environment. Of an error of `start` it says on stderr what went
// wrong, and returns its exit code.
int exit_code_of_run(const std::function<int(const Environment& environment)>& start);

}  // namespace lockstep::launcher
