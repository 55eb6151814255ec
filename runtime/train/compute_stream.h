// SPDX-License-Identifier: Apache-2.0
// Tensors and the collectives of a group on a device, in one order.
#pragma once

#include "lockstep/comm/process_group.h"
#include "runtime/tensor/kernels.h"

namespace lockstep {

// From now on the group's collectives come behind what is in the stream of its device's tensors, and that goes on
// behind them. Nothing on the CPU.
inline void join_compute_stream(ProcessGroup& group) {
  if (group.device().kind == DeviceKind::cpu) return;
  const StreamView stream = kernels(group.device()).stream();
  if (group.stream() != stream) group.set_stream(stream);
}

}  // namespace lockstep
