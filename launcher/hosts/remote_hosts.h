// SPDX-License-Identifier: Apache-2.0
// `lockstep run -H` and `--hostfile`: starts a launcher on each host through a remote shell, and shows what they write.
#pragma once

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Returns the job's exit code. Throws InvalidArgument and SystemError. The process must have one thread still.
int start_remote_hosts(const RunOptions& options, const Environment& environment);

}  // namespace lockstep::launcher
