// SPDX-License-Identifier: Apache-2.0
// Broadcasts one rank's parameter values to all ranks, so that replicas start equal.
#pragma once

#include <span>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Copies the bytes of `root`'s `buffers` into the buffers of every other rank. The call is collective and blocking.
// Every rank passes the same number of buffers, with the same sizes and dtypes, in the same order; the Reducer's
// constructor compares the ranks' parameters.
//
// Buffers of less than 1 MiB travel together, 4 MiB at a time; larger buffers are sent from their own memory. Buffers
// on the group's device are read after the work that is in the group's stream(), and have the new values when the call
// returns. Throws InvalidArgument if root is not a rank, or a buffer is neither in CPU memory nor on the group's
// device. Throws the group's errors, or DeviceError.
LOCKSTEP_API void broadcast_parameters(ProcessGroup& group, std::span<const BufferView> buffers, int root = 0);

}  // namespace lockstep
