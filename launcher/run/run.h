// SPDX-License-Identifier: Apache-2.0
// `lockstep run`: everything around the job itself.
#pragma once

#include "launcher/hosts/agent_input.h"
#include "launcher/run_options.h"

namespace lockstep::launcher {

// Finds the program, hosts the store, runs the ranks. Returns the exit code; says on stderr what went wrong.
// The process must have one thread still.
int run_command(const RunOptions& options);
// The same as one of the launchers that another `lockstep run` has started; `input` is its word.
int run_as_agent(const RunOptions& options, AgentInput& input);

}  // namespace lockstep::launcher
