// SPDX-License-Identifier: Apache-2.0
// `lockstep run` on one host, except for the job itself.
#pragma once

#include <functional>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Finds the program, hosts the store, runs the ranks. Returns the job's exit code. Throws InvalidArgument, SystemError.
// Call it while the process has one thread.
int start_one_host(const RunOptions& options, const Environment& environment);

// Returns the result of `start` for this process's environment. After an error of `start` it prints the error on
// stderr, and returns its exit code.
int exit_code_of_run(const std::function<int(const Environment& environment)>& start);

}  // namespace lockstep::launcher
