// SPDX-License-Identifier: Apache-2.0
// How a launcher comes to the job's one store: it serves it, or finds it, and is an agent there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agents.h"
#include "launcher/placement/contract.h"
#include "launcher/placement/preparation.h"
#include "launcher/run/run_stores.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// The environment's. InvalidArgument, with the command that draws one, where there is none.
store::Secret secret_of(const RunOptions& options, const Environment& environment);

// A problem that keeps ranks from starting here is for all hosts to know, so it is not an error. Fills in
// `preparation`.
HostFacts look_at_this_host(const RunOptions& options, const Environment& environment, const Guardian& guardian,
                            Preparation& preparation);

using Say = std::function<void(const std::string&)>;

// Serves the job's store if that is for this host to do; null if not. Fills in the contract's run id and addresses.
// A name is served at every address of this host, which may know it as an address that no other host reaches: the
// secret protects the store. A name that is not known, or is none of this host's, is looked up again until `deadline`,
// and with it who serves is decided anew. `is_agent`: of `lockstep run -H`, which has decided that.
// Throws InvalidArgument, SystemError, and StoreError if the name is still unknown, or another host's, at the deadline.
std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool is_agent,
                                       const Deadline& deadline, const Say& say, WakingQueue<AgentNews>& news);

struct AgentPart {
  bool serves = false;      // this process has the store
  bool can_replace = true;  // another host may come in the place of a lost one
};
// `signals` and `news` outlive the agents. Throws StoreError, saying what to do, where the store can't be reached or
// turns this host away.
std::unique_ptr<Agents> join_agents(const RunOptions& options, const Environment& environment, const Contract& contract,
                                    const AgentPart& part, const Deadline& deadline, Say say, Signals& signals,
                                    WakingQueue<AgentNews>& news);

}  // namespace lockstep::launcher
