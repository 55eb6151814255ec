// SPDX-License-Identifier: Apache-2.0
// The messages of the agents of a job, which are the launchers of its hosts, while it runs. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "launcher/hosts/host_facts.h"
#include "launcher/process/rank_end.h"
#include "launcher/verdict/job_control.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

// To the first host's agent.

// The host is there, and ready to start its ranks.
struct HostJoined {
  HostFacts host = {};
};
struct StopAsked {
  int signal = 0;
  bool insists = false;  // the host has been asked before
};
// Nothing of the host's ranks runs any more.
struct RanksGone {
  int node = 0;
  int exit_code = 0;
};

// And TakenStacks, which it has ordered.

// From the first host's agent to all others, beside its orders.

// No rank of this start runs any more, on any host.
struct StartOver {
  int exit_code = 0;   // the job's, if it is over
  bool again = false;  // the ranks are started again
};

using AgentMessage = std::variant<RankEnd, Cause, StopAsked, RanksGone, HostJoined, TakenStacks, Order, StartOver>;

struct AgentWord {
  int start = 0;  // of the job's starts the one that it is about, from 0
  AgentMessage message = {};
};

// A record (base/record.h).
std::string encode(const AgentWord& word);
// nullopt if the text is not one of encode().
std::optional<AgentWord> decode_agent_word(std::string_view text);

}  // namespace lockstep::launcher
