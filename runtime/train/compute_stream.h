// SPDX-License-Identifier: Apache-2.0
// Tensors and the collectives of a group on a device, in one order.
#pragma once

#include "lockstep/comm/process_group.h"
#include "runtime/tensor/kernels.h"

namespace lockstep {

// Makes the group's collectives follow the work in the stream of its device's tensors, and later work there follow the
// collectives. Does nothing on the CPU.
inline void join_compute_stream(ProcessGroup& group) {
  if (group.device().kind == DeviceKind::cpu) return;
  const StreamView stream = kernels(group.device()).stream();
  if (group.stream() != stream) group.set_stream(stream);
}

}  // namespace lockstep
