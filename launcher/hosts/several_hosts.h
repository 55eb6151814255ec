// SPDX-License-Identifier: Apache-2.0
// `lockstep run` as one of the launchers of a job on several hosts.
#pragma once

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agent_input.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Meets the other hosts' launchers, runs this host's ranks, and returns the job's exit code, the same on every host.
// Prints the problem that keeps the job from beginning on stderr. Throws InvalidArgument, SystemError, and Error if the
// others can't be met. Call it while the process has one thread. `input` belongs to a launcher that `lockstep run -H`
// has started; the common messages of these launchers are printed by node rank 0's alone.
int start_several_hosts(RunOptions options, const Environment& environment, AgentInput* input = nullptr);

}  // namespace lockstep::launcher
