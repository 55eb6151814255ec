// SPDX-License-Identifier: Apache-2.0
// What the agents of a job, the launchers of its hosts, tell each other while it runs. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/run/job_control.h"
#include "launcher/run/rank_end.h"
#include "lockstep/base/cause.h"

namespace lockstep::launcher {

// To the first host's agent.

struct StopAsked {
  int signal = 0;
  bool insists = false;  // the host has been asked before
};
// Nothing of the host's ranks runs any more.
struct RanksGone {
  int node = 0;
  int exit_code = 0;
};

// From the first host's agent to all others, beside its orders.

struct JobOver {
  int exit_code = 0;
};

using AgentMessage = std::variant<RankEnd, Cause, StopAsked, RanksGone, Order, JobOver>;

// A record (base/record.h).
std::string encode(const AgentMessage& message);
// nullopt if the text is none of encode().
std::optional<AgentMessage> decode_agent_message(std::string_view text);

}  // namespace lockstep::launcher
