// SPDX-License-Identifier: Apache-2.0
// The flags of `lockstep run`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// The texts of flags whose values CLI11 does not parse.
struct RawRunFlags {
  std::string nproc_per_node;
  std::string ranks;
  std::string nnodes;
  std::string node_rank;
  std::string hosts;
  std::string hostfile;
  std::string rdzv_endpoint;
  std::string rdzv_id;
  std::string rdzv_timeout;
  std::string rdzv_wait;
  std::string rdzv_backend;
  std::string rdzv_conf;
  std::string master_addr;
  std::string max_restarts;
  std::string tee;
  std::string shown_ranks;
  std::string bind;
  std::string grace;
  std::string timeout;
  std::string master_port;
  std::string liveness;
  std::string backend;
  std::string hang_timeout;
  std::string stop_timeout;
  std::string requeue_exit_code;
  std::string metrics_port;
  std::optional<std::string> devices;
};

// Fills flags that were not given from torchrun's variables PET_NAME, and --backend from LOCKSTEP_BACKEND, so that a
// wrong name is rejected before any rank starts. Returns the names of the variables that supplied a value.
std::vector<std::string> take_variables(const Environment& environment, RawRunFlags& raw);
// Returns "; PET_NNODES says so" for a problem of a flag whose value came from one of `variables`; else an empty
// string.
std::string source_of(std::string_view problem, std::span<const std::string> variables);

// Moves -H, --hostfile, the flags that need one of the two, and --rdzv-endpoint if one of the two is given. Throws as
// interpret().
void interpret_hosts(const RawRunFlags& raw, RunOptions& options);

// Moves the raw texts into `options`. Throws InvalidArgument.
void interpret(const RawRunFlags& raw, RunOptions& options);

}  // namespace lockstep::launcher
