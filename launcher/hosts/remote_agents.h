// SPDX-License-Identifier: Apache-2.0
// The start of `lockstep agent` through a remote shell on each host that a user names for `lockstep run -H` or
// `lockstep doctor -H`.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "launcher/flags/run_options.h"
#include "launcher/hosts/agent_input.h"
#include "launcher/hosts/remote_host.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Returns the hosts of -H or --hostfile; with -n, the first hosts that have as many slots. Throws InvalidArgument.
std::vector<HostEntry> named_hosts(const RunOptions& options);

// Returns the address at which the other hosts find the first of `hosts`: --rdzv-endpoint, else the host's name, or, if
// it is this host, the address that other hosts would use; port 0 if none is given.
std::string endpoint_of(const RunOptions& options, const std::vector<HostEntry>& hosts, const Environment& environment);

// Returns the folder in which the ranks start on each host: this process's. Throws InvalidArgument if it no longer
// exists.
std::string folder_of_ranks();

// Returns "NAME=value" for each variable that is sent to the hosts: lockstep's own, those of the libraries below it,
// and those that -x names. Throws InvalidArgument for a variable that -x names and that is not set.
std::vector<std::string> travelling_variables(const RunOptions& options, const Environment& environment);

// Returns the command that runs `lockstep agent` on the host `name`. Throws InvalidArgument if the remote shell is not
// installed.
std::vector<std::string> agent_command_on(const std::string& name, const RunOptions& options,
                                          const Environment& environment);

// Runs that command, and sends the agent its start message. The remote shell inherits this process's variables except
// for the secret. Throws as agent_command_on() and RemoteHost do.
std::unique_ptr<RemoteHost> start_agent(const std::string& name, const AgentStart& start, const RunOptions& options,
                                        const Environment& environment, const sigset_t& signal_mask);

}  // namespace lockstep::launcher
