// SPDX-License-Identifier: Apache-2.0
// The agreement of the ranks before NCCL may start: one version, and a GPU for each.
#pragma once

#include <span>
#include <string>

#include "lockstep/base/deadline.h"
#include "runtime/comm/backend.h"

namespace lockstep::nccl {

// One rank's word.
struct Equipment {
  std::string uuid;  // of its GPU
  int nccl_version = 0;
};

// Why these ranks can't be a group, as a sentence with its remedy; empty if they can. By rank. Pure.
std::string verdict_on(std::span<const Equipment> ranks, const rendezvous::Roster& roster, bool may_share_gpus);

// Tells the others of this rank's and returns the verdict, the same on each rank: whoever comes last finds it.
// Collective. Throws Timeout, which names the ranks that did not come, and CorruptData.
std::string compare_equipment(const Equipment& own, const GroupContext& context, bool may_share_gpus,
                              const Deadline& deadline);

}  // namespace lockstep::nccl
