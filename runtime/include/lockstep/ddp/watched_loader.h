// SPDX-License-Identifier: Apache-2.0
// Defines the requirements on a loader that a DistributedDataParallel watches.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/data_identity.h"

namespace lockstep {

// TellsIdentity is a loader or sampler with identity(), which returns the numbers that decide which samples the
// loader reads.
template <typename T>
concept TellsIdentity = requires(const std::remove_reference_t<T>& it) {
  DataIdentity(it.identity());
};

// Throws InvalidArgument unless `rank` and `world`, those of a sampler, are the group's rank and size. With other
// values several ranks, or no rank, would read some rows.
LOCKSTEP_API void require_rank_of_group(const ProcessGroup& group, int rank, int world);
template <typename Loader>
void require_rank_of_group(const ProcessGroup& group, Loader& loader) {
  if constexpr (requires { loader.sampler().rank(); }) {
    require_rank_of_group(group, loader.sampler().rank(), loader.sampler().world());
  } else if constexpr (requires { loader.rank(); }) {
    require_rank_of_group(group, loader.rank(), loader.world());
  }
}

// training_is_over() returns a function that returns whether all ranks of the group have agreed to stop. The function
// returns false after the group is destroyed.
using IsOver = std::function<bool()>;
LOCKSTEP_API IsOver training_is_over(const ProcessGroup& group);

// Makes the passes of a loader with end_when() end when the training ends; does nothing with another loader.
template <typename Loader>
void end_with_training(Loader& loader, const ProcessGroup& group) {
  if constexpr (requires { loader.end_when(IsOver()); }) loader.end_when(training_is_over(group));
}

}  // namespace lockstep
