// SPDX-License-Identifier: Apache-2.0
// `lockstep run` as one of the launchers of a job on several hosts.
#pragma once

#include "launcher/command_line.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Meets the other hosts' launchers, runs this host's ranks, and returns the job's exit code, the same on every host.
// Says on stderr what keeps the job from beginning. Throws InvalidArgument, SystemError, and Error where the others
// can't be met. The process must have one thread still.
int start_several_hosts(const RunOptions& options, const Environment& environment);

}  // namespace lockstep::launcher
