// SPDX-License-Identifier: Apache-2.0
// One host's part of `lockstep doctor -H`: `lockstep agent` on that host examines it, serves a store, and connects to
// the others' stores.
#pragma once

#include <string_view>

#include "launcher/hosts/agent_input.h"

namespace lockstep::launcher::doctor {

// The lines of a trial, on its stderr: this and a JSON object. The first is {"build", "address", "port", "findings"}, a
// TriedHost's; the second, after the peers are tried, {"findings"}.
inline constexpr std::string_view kTrialLine = "lockstep-doctor ";
// The line to a trial, on its stdin: this and a JSON array of {"node", "name", "address"}. The trial ends when its
// stdin ends.
inline constexpr std::string_view kPeersLine = "peers ";

// Returns the exit code. Main thread.
int run_host_trial(AgentInput& input);

}  // namespace lockstep::launcher::doctor
