// SPDX-License-Identifier: Apache-2.0
// `lockstep inspect`: the position of each rank of a running job, down to the line of its stack.
#pragma once

#include "launcher/live/run_client.h"

namespace lockstep::launcher {

// Prints to stdout. Throws Error.
void inspect(const FoundRun& run);

}  // namespace lockstep::launcher
