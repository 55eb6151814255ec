// SPDX-License-Identifier: Apache-2.0
// Defines which functions a data loader or sampler needs for DistributedDataParallel::watch().
#pragma once

#include <functional>
#include <memory>
#include <type_traits>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/data_identity.h"

namespace lockstep {

// TellsIdentity is the concept of a loader or sampler that has the function identity(). identity() returns the numbers
// that decide which samples the loader reads.
template <typename T>
concept TellsIdentity = requires(const std::remove_reference_t<T>& it) {
  DataIdentity(it.identity());
};

// Throws InvalidArgument unless `rank` and `world` of a sampler are the group's rank and size. If a sampler's rank or
// world differed from the group's, some rows would be read by several ranks or by no rank.
LOCKSTEP_API void require_rank_of_group(const ProcessGroup& group, int rank, int world);
template <typename Loader>
void require_rank_of_group(const ProcessGroup& group, Loader& loader) {
  if constexpr (requires { loader.sampler().rank(); }) {
    require_rank_of_group(group, loader.sampler().rank(), loader.sampler().world());
  } else if constexpr (requires { loader.rank(); }) {
    require_rank_of_group(group, loader.rank(), loader.world());
  }
}

// training_is_over() returns a function that tells whether all ranks of the group have agreed to stop. The function
// that training_is_over() returns gives false after the group is destroyed.
using IsOver = std::function<bool()>;
LOCKSTEP_API IsOver training_is_over(const ProcessGroup& group);

// If `loader` has the function end_when(), end_with_training() makes each pass of the loader end once all ranks have
// agreed to stop. For a loader without end_when(), end_with_training() does nothing.
template <typename Loader>
void end_with_training(Loader& loader, const ProcessGroup& group) {
  if constexpr (requires { loader.end_when(IsOver()); }) loader.end_when(training_is_over(group));
}

}  // namespace lockstep
