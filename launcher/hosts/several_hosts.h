// SPDX-License-Identifier: Apache-2.0
// `lockstep run` as one of the launchers of a job on several hosts.
#pragma once

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agent_input.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Meets the other hosts' launchers, runs this host's ranks, and returns the job's exit code, the same on every host.
// Says on stderr what keeps the job from beginning. Throws InvalidArgument, SystemError, and Error where the others
// can't be met. The process must have one thread still.
// `input`: of a launcher that `lockstep run -H` has started, which says what all of them have to say through node rank
// 0's.
int start_several_hosts(RunOptions options, const Environment& environment, AgentInput* input = nullptr);

}  // namespace lockstep::launcher
