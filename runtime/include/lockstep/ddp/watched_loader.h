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

// Whether all ranks of the group have agreed to stop; false after the group has gone.
using IsOver = std::function<bool()>;
LOCKSTEP_API IsOver training_is_over(const ProcessGroup& group);

// A loader with end_when() ends its passes with the training; anything else is left alone.
template <typename Loader>
void end_with_training(Loader& loader, const ProcessGroup& group) {
  if constexpr (requires { loader.end_when(IsOver()); }) loader.end_when(training_is_over(group));
}

}  // namespace lockstep
