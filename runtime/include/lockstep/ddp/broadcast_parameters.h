// SPDX-License-Identifier: Apache-2.0
// Defines broadcast_parameters(), which copies one rank's parameter values to all ranks, so that all replicas start
// with equal values.
#pragma once

#include <span>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Copies the bytes of root's `buffers` into the `buffers` of every other rank. broadcast_parameters() is collective and
// blocking. Every rank must pass equally many buffers, with equal sizes and dtypes in equal order; the constructor of
// the Reducer checks that the ranks' parameters agree.
//
// Buffers of less than 1 MiB are packed into messages of up to 4 MiB; larger buffers are sent without a copy. Buffers
// on the group's device are read after the work that the group's stream() holds at the call, and have their new values
// when broadcast_parameters() returns. Throws InvalidArgument if root is not a rank, or a buffer is neither in CPU
// memory nor on the group's device. Also throws the group's errors and DeviceError.
LOCKSTEP_API void broadcast_parameters(ProcessGroup& group, std::span<const BufferView> buffers, int root = 0);

}  // namespace lockstep
