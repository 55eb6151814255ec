// SPDX-License-Identifier: Apache-2.0
// The requirements of a DistributedDataParallel on a loader that it watches.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/data_identity.h"

namespace lockstep {

// A loader or sampler that tells the numbers which decide which samples are read.
template <typename T>
concept TellsIdentity = requires(const std::remove_reference_t<T>& it) {
  DataIdentity(it.identity());
};

// InvalidArgument unless the sampler reads for this rank of the group, and for as many ranks: else some rows would be
// read by several ranks, or by none.
LOCKSTEP_API void require_rank_of_group(const ProcessGroup& group, int rank, int world);
template <typename Loader>
void require_rank_of_group(const ProcessGroup& group, Loader& loader) {
  if constexpr (requires { loader.sampler().rank(); }) {
    require_rank_of_group(group, loader.sampler().rank(), loader.sampler().world());
  } else if constexpr (requires { loader.rank(); }) {
    require_rank_of_group(group, loader.rank(), loader.world());
  }
}

// Whether all ranks of the group have agreed to stop; false after the group has gone.
using IsOver = std::function<bool()>;
LOCKSTEP_API IsOver training_is_over(const ProcessGroup& group);

// A loader with end_when() ends its passes with the training; anything else is left alone.
template <typename Loader>
void end_with_training(Loader& loader, const ProcessGroup& group) {
  if constexpr (requires { loader.end_when(IsOver()); }) loader.end_when(training_is_over(group));
}

}  // namespace lockstep
