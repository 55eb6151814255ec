// SPDX-License-Identifier: Apache-2.0
// `lockstep ps`, `top`, `inspect`, `trace`, `logs` and `stop`: the runs of this user on this host, from another
// terminal.
#pragma once

#include <string>
#include <vector>

#include "launcher/flags/command_line.h"
#include "launcher/live/run_client.h"

namespace lockstep::launcher {

// Returns the exit code.
int runs_command(const RunsOptions& options);

// Returns the lines of `lockstep ps`. Pure.
std::string as_table(const std::vector<FoundRun>& runs);
std::string as_json(const std::vector<FoundRun>& runs);

}  // namespace lockstep::launcher
