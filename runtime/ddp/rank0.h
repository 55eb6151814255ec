// What rank 0 does for all ranks, as reading or writing a file.
//
// Collective. Failure: what the action throws is thrown on rank 0, whatever becomes of the group meanwhile; every other
// rank throws PeerLost, a consequence, whose cause() holds rank 0's text and errno ("save_weights: rank 0 (host node7,
// pid 4711) failed: ..."). No rank throws before all have the text, and the group goes on. What the group itself throws
// where the action has not failed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// Runs `action` on rank 0; its result on every rank. `operation` is for messages.
LOCKSTEP_INTERNAL_API std::string on_rank0(std::string_view operation, ProcessGroup& group,
                                           const std::function<std::string()>& action);

}  // namespace lockstep
