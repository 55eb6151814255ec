// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/watched_loader.h"

#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {

IsOver training_is_over(const ProcessGroup& group) {
  return [weak = std::weak_ptr<const CoordinatedStop>(group.internals().coordinated_stop())] {
    const auto stop = weak.lock();
    return stop && stop->is_latched();
  };
}

}  // namespace lockstep
