// SPDX-License-Identifier: Apache-2.0
// The flags of `lockstep run`, and those that `lockstep doctor` has in common with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/flags/command_line.h"
#include "launcher/flags/flag_table.h"

namespace lockstep::launcher {

// Adds the flags of `lockstep run`. The result returns the options after the parse of `arguments`, and throws
// InvalidArgument. All three arguments must outlive it.
std::function<Command()> add_run_flags(FlagTable& flags, const std::vector<std::string>& arguments,
                                       const Environment& environment);

// Checks -H, --hostfile and the flags that need one of the two against each other, and sets the endpoint that
// --rdzv-endpoint gives with them. Throws InvalidArgument.
void check_hosts(const FlagTable& flags, RunOptions& options);

}  // namespace lockstep::launcher
