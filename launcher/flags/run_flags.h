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

// Text of the flags whose values need a closer look than CLI11's.
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
// wrong name is refused before any rank starts. Returns the names of the variables that it took.
std::vector<std::string> take_variables(const Environment& environment, RawRunFlags& raw);
// "; PET_NNODES says so" behind a problem of a flag whose value one of `variables` has given; else nothing.
std::string source_of(std::string_view problem, std::span<const std::string> variables);

// -H, --hostfile and what goes with them alone, --rdzv-endpoint if there is one of the two: as interpret().
void interpret_hosts(const RawRunFlags& raw, RunOptions& options);

// Moves the raw texts into `options`. InvalidArgument.
void interpret(const RawRunFlags& raw, RunOptions& options);

}  // namespace lockstep::launcher
