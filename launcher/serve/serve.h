// SPDX-License-Identifier: Apache-2.0
// `lockstep store serve`: the server of a store by itself.
#pragma once

#include "launcher/flags/command_line.h"

namespace lockstep::launcher {

// Serves until a signal asks it to end. Returns the exit code; says on stderr what went wrong. The process must have
// one thread still.
int serve_command(const ServeOptions& options);

}  // namespace lockstep::launcher
