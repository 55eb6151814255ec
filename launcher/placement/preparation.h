// SPDX-License-Identifier: Apache-2.0
// The requirements of ranks on a host: the program, GPUs if they are asked for, a folder for logs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/flags/run_options.h"
#include "launcher/placement/contract.h"
#include "launcher/placement/rank_count.h"
#include "launcher/process/find_program.h"
#include "launcher/process/guardian.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

struct Preparation {
  FoundProgram program = {};  // its path is empty if it can't be run; then nothing else is examined
  RankCount count = {};
  std::optional<std::string> visible_devices = {};  // for the ranks, if the user chose GPUs
  std::vector<RankBinding> bindings = {};           // by local rank; empty: none
  std::string crowd = {};                           // describe_crowd()
};
// Throws InvalidArgument for a requirement that this host does not meet. The guardian ends the processes of
// --health-check if this process dies.
Preparation prepare(const RunOptions& options, const Environment& environment, const Guardian& guardian);

// Returns `environment` with the variables of the ranks that flags set: what the ranks inherit, and what their launcher
// reads the same settings from.
Environment environment_of_ranks(const RunOptions& options, Environment environment);

// Returns the contract that the flags describe. Hosts, addresses and secret keep their defaults.
Contract contract_of(const RunOptions& options);

}  // namespace lockstep::launcher
