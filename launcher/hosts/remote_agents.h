// SPDX-License-Identifier: Apache-2.0
// How `lockstep run -H` and `lockstep doctor -H` come to the hosts that a user names: `lockstep agent` on each, through
// a remote shell.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agent_start.h"
#include "launcher/hosts/remote_host.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// The hosts of -H or --hostfile, with -n the first that have so many slots. Throws InvalidArgument.
std::vector<HostEntry> named_hosts(const RunOptions& options);

// Where the others find the first of `hosts`: --rdzv-endpoint, else its name, or the address that others take if it is
// this host; port 0 where none is given.
std::string endpoint_of(const RunOptions& options, const std::vector<HostEntry>& hosts, const Environment& environment);

// That the ranks start in, on each host: this process's. Throws InvalidArgument if that is not there any more.
std::string folder_of_ranks();

// "NAME=value" of what travels: lockstep's own variables, those of the libraries below it, and what -x names. Throws
// InvalidArgument for one that -x names and that is not set.
std::vector<std::string> travelling_variables(const RunOptions& options, const Environment& environment);

// The words that run `lockstep agent` on the host `name`. Throws InvalidArgument if the remote shell is not there.
std::vector<std::string> agent_command_on(const std::string& name, const RunOptions& options,
                                          const Environment& environment);

// Runs them, and gives the agent its start. Of this process's variables the remote shell gets all but the secret.
// Throws as agent_command_on() and RemoteHost.
std::unique_ptr<RemoteHost> start_agent(const std::string& name, const AgentStart& start, const RunOptions& options,
                                        const Environment& environment, const sigset_t& signal_mask);

}  // namespace lockstep::launcher
