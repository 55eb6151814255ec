// SPDX-License-Identifier: Apache-2.0
// Makes the communicator of a group, with all ranks.
#pragma once

#include "runtime/comm/nccl/group_core.h"

namespace lockstep::nccl {

// The communicator, its stream, and what the device needs beside them. Collective; a thread that has the device
// current. Throws BackendUnavailable, Timeout, PeerLost.
void connect(GroupCore& core, const Deadline& deadline);

}  // namespace lockstep::nccl
