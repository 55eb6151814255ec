// SPDX-License-Identifier: Apache-2.0
// The flags of `lockstep store serve`.
#pragma once

#include <functional>

#include "launcher/flags/command_line.h"
#include "launcher/flags/flag_table.h"

namespace lockstep::launcher {

// Adds the flags. The result returns the options after the parse, and throws InvalidArgument. `flags` must outlive it.
std::function<Command()> add_serve_flags(FlagTable& flags);

}  // namespace lockstep::launcher
