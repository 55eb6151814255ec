// SPDX-License-Identifier: Apache-2.0
// `lockstep store serve`: a store's server as a separate program.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Serves until a signal asks to end. Returns the exit code; prints errors on stderr. Call it while the process has one
// thread.
int serve_command(const ServeOptions& options);

}  // namespace lockstep::launcher
