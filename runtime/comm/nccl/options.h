// SPDX-License-Identifier: Apache-2.0
// Options of groups over NCCL, from the environment.
#pragma once

#include <chrono>
#include <optional>

#include "lockstep/base/environment.h"

namespace lockstep::nccl {

// From the environment; each is the same on every rank.
struct Options {
  bool check_collectives = false;  // LOCKSTEP_CHECK_COLLECTIVES=1: compare each over the ranks before it starts. For a
                                   // run that looks for a fault: it costs a trip to the store
  bool may_share_gpus = false;     // LOCKSTEP_OVERSUBSCRIBE_GPU=1
  // LOCKSTEP_FAILURE_WATCHDOG, seconds: how long an abort may take before the process is ended, and any other call that
  // should have returned before that is said in the log. "off": no process is ended.
  std::chrono::nanoseconds abort_patience = std::chrono::seconds(5);
  bool watchdog = true;
  std::optional<int> max_ctas = {};  // LOCKSTEP_NCCL_MAX_CTAS, 1 to 64
};
// Throws InvalidArgument.
Options options_of(const Environment& environment);

}  // namespace lockstep::nccl
