// SPDX-License-Identifier: Apache-2.0
// Messages between the agents of a job, which are the launchers of its hosts, while the job runs. Pure.
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

// Messages to node rank 0's agent.

// The host is ready to start its ranks.
struct HostJoined {
  HostFacts host = {};
};
struct StopAsked {
  int signal = 0;
  bool insists = false;  // the host has asked before
};
// None of the host's ranks' processes runs any more.
struct RanksGone {
  int node = 0;
  int exit_code = 0;
};

// TakenStacks too, in answer to node rank 0's order.

// Messages from node rank 0's agent to all others, in addition to its orders.

// There is another plan (agents.h).
struct PlanMade {};
// No rank of this start runs any more, on any host.
struct StartOver {
  int exit_code = 0;   // the job's exit code, if the job is over
  bool again = false;  // the ranks are started again
};

using AgentMessage =
    std::variant<RankEnd, Cause, StopAsked, RanksGone, HostJoined, TakenStacks, Order, PlanMade, StartOver>;

struct AgentWord {
  int start = 0;  // number of the start that the message is about, from 0
  AgentMessage message = {};
};

// Returns a record (base/record.h).
std::string encode(const AgentWord& word);
// Returns nullopt if the text was not made by encode().
std::optional<AgentWord> decode_agent_word(std::string_view text);

}  // namespace lockstep::launcher
