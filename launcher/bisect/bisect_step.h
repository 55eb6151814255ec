// SPDX-License-Identifier: Apache-2.0
// `lockstep bisect-step`.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Returns the program's exit code.
int bisect_step_command(const BisectStepOptions& options);

}  // namespace lockstep::launcher
