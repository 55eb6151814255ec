// SPDX-License-Identifier: Apache-2.0
// All that a host must have before ranks can start on it: the program, GPUs where they are asked for, a folder for
// logs.
#pragma once

#include <chrono>
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
  FoundProgram program = {};  // without a path it can't be run, and the rest is not looked at
  RankCount count = {};
  std::optional<std::string> visible_devices = {};  // for the ranks, where the user chose
  std::vector<RankBinding> bindings = {};           // by local rank; empty: none
  std::string crowd = {};                           // describe_crowd()
};
// Throws InvalidArgument for what isn't here. What --health-check starts ends with this process, by the guardian.
Preparation prepare(const RunOptions& options, const Environment& environment, const Guardian& guardian);

// --stop-timeout, else what the environment says. InvalidArgument.
std::chrono::nanoseconds stop_timeout_of(const RunOptions& options, const Environment& environment);

// --requeue-exit-code, else what the environment says. InvalidArgument.
int requeue_code_of(const RunOptions& options, const Environment& environment);

// A contract as the flags say. Hosts, addresses and secret are left as they are.
Contract contract_of(const RunOptions& options);

}  // namespace lockstep::launcher
