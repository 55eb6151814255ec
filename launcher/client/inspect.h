// SPDX-License-Identifier: Apache-2.0
// `lockstep inspect`: where each rank of a running job is, to the line of its stack.
#pragma once

#include "launcher/live/run_client.h"

namespace lockstep::launcher {

// On stdout. Throws Error.
void inspect(const FoundRun& run);

}  // namespace lockstep::launcher
