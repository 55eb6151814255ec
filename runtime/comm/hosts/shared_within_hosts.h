// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of each host share beside a wire: arenas of a shared-memory group of the host's own.
#pragma once

#include <memory>

#include "lockstep/base/deadline.h"
#include "runtime/base/internal_api.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/wire/host_memory.h"

namespace lockstep {

// Null where it is of no use, which is for one host or one rank on each, or where a rank can't have it: rank 0 warns of
// that with the reason. Collective: the same on every rank. Throws Timeout with the ranks that did not come, PeerLost.
LOCKSTEP_INTERNAL_API std::unique_ptr<wire::HostMemory> shared_within_hosts(const GroupContext& context,
                                                                            const Deadline& deadline);

}  // namespace lockstep
