// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/watched_loader.h"

#include "runtime/comm/group_internals.h"
#include "runtime/comm/stop_latch.h"

namespace lockstep {

IsOver training_is_over(const ProcessGroup& group) {
  return [weak = std::weak_ptr<const StopLatch>(group.internals().stop_latch())] {
    const auto latch = weak.lock();
    return latch && latch->is_latched();
  };
}

}  // namespace lockstep
