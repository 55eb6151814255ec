// SPDX-License-Identifier: Apache-2.0
// `lockstep run -H` and `--hostfile`: starts a launcher on each host through a remote shell, and shows its output.
#pragma once

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Returns the job's exit code. Throws InvalidArgument and SystemError. Call it while the process has one thread.
int start_remote_hosts(const RunOptions& options, const Environment& environment);

}  // namespace lockstep::launcher
