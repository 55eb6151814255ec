// SPDX-License-Identifier: Apache-2.0
// Broadcasts one rank's values to all, so that replicas start equal.
#pragma once

#include <span>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective and blocking. Gives every rank the bytes that `root` has in `buffers`, in place. Every rank passes the
// same number of buffers, with the same sizes and dtypes, in the same order; the Reducer's constructor compares them.
//
// Buffers of less than 1 MiB travel together, 4 MiB at a time; larger ones are sent from their own memory. Buffers on
// the group's device are read after the work that is in its stream(), and the values are there when the call returns.
// InvalidArgument if root is not a rank, or a buffer is neither in CPU memory nor on the group's device. Throws the
// group's errors, or DeviceError.
LOCKSTEP_API void broadcast_parameters(ProcessGroup& group, std::span<const BufferView> buffers, int root = 0);

}  // namespace lockstep
