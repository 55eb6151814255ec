// SPDX-License-Identifier: Apache-2.0
// The way of a launcher to the job's one store: it serves the store, or finds it, and becomes an agent there.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agent_link.h"
#include "launcher/placement/contract.h"
#include "launcher/placement/preparation.h"
#include "launcher/run/run_stores.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Returns the environment's secret. Throws InvalidArgument, with the command that generates one, if there is none.
store::Secret secret_of(const RunOptions& options, const Environment& environment);

// Examines this host and fills in `preparation`. A problem that keeps ranks from starting is not thrown, since all
// hosts need to know it.
HostFacts look_at_this_host(const RunOptions& options, const Environment& environment, const Guardian& guardian,
                            Preparation& preparation);

using Say = std::function<void(const std::string&)>;

// Serves the job's store if this host is the one to do it; else returns null. Fills in the contract's run id and
// addresses. If the endpoint is a name, the store listens at every address of this host, whose own lookup may give an
// address that no other host reaches; the secret protects the store. A name that is unknown, or is not this host's, is
// looked up again until `deadline`, and each lookup decides anew which host serves. `is_agent`: `lockstep run -H`
// started this launcher, and has decided it. Throws InvalidArgument, SystemError, and StoreError if the name is still
// unknown, or another host's, at the deadline.
std::unique_ptr<RunStores> serve_store(const RunOptions& options, Contract& contract, bool is_agent,
                                       const Deadline& deadline, const Say& say, WakingQueue<AgentNews>& news);

struct AgentPart {
  bool serves = false;      // this process has the store
  bool can_replace = true;  // a new host may replace a lost one
};
// `signals` and `news` outlive the agents. Throws StoreError, with the remedy, if the store can't be reached or rejects
// this host.
std::unique_ptr<AgentLink> join_agents(const RunOptions& options, const Environment& environment,
                                       const Contract& contract, const AgentPart& part, const Deadline& deadline,
                                       Say say, Signals& signals, WakingQueue<AgentNews>& news);

}  // namespace lockstep::launcher
