// SPDX-License-Identifier: Apache-2.0
// How a launcher comes to the job's one store: it serves it, or finds it, and is an agent there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launcher/command_line.h"
#include "launcher/hosts/agents.h"
#include "launcher/run/contract.h"
#include "launcher/run/preparation.h"
#include "launcher/run/run_stores.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// The environment's. InvalidArgument, with the command that draws one, where there is none.
store::Secret secret_of(const RunOptions& options, const Environment& environment);

// What keeps ranks from starting here is for all hosts to know, so it is no error. Fills in `preparation`.
HostFacts look_at_this_host(const RunOptions& options, const Environment& environment, const Guardian& guardian,
                            Preparation& preparation);

// Serves the job's store if that is for this host to do; null if not. Fills in the contract's run id and addresses.
// `everywhere`: at every address of this host, since its name may mean loopback on the host itself.
// Throws InvalidArgument, SystemError.
std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool everywhere,
                                       WakingQueue<AgentNews>& news);

struct AgentPart {
  bool serves = false;      // this process has the store
  bool can_replace = true;  // another host may come in the place of a lost one
};
// `signals` and `news` outlive the agents. Throws StoreError, saying what to do, where the store can't be reached or
// turns this host away.
std::unique_ptr<Agents> join_agents(const RunOptions& options, const Environment& environment, const Contract& contract,
                                    const AgentPart& part, std::function<void(const std::string&)> say,
                                    Signals& signals, WakingQueue<AgentNews>& news);

}  // namespace lockstep::launcher
