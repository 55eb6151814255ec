// SPDX-License-Identifier: Apache-2.0
// One host's part of `lockstep doctor -H`: `lockstep agent` on that host examines it, listens, and connects to the
// others.
#pragma once

#include "launcher/flags/command_line.h"
#include "launcher/hosts/agent_input.h"

namespace lockstep::launcher::doctor {

// Exchanges the lines of trial_lines.h over this process's stderr and `input`, until `input` ends. Returns the exit
// code. Main thread.
int run_host_trial(AgentInput& input, const DoctorOptions& options);

}  // namespace lockstep::launcher::doctor
