// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/doorbell.h"

#include <utility>

namespace lockstep::wire {

// The addition and the load in ring() are sequentially consistent, like the store and the load in sleep_unless_rung().
// With a weaker memory order, the load could happen before the addition: ring() would find `asleep` unset, while the
// owner would find `rings` unchanged and sleep for ever.
void DoorbellButton::ring() const {
  words->rings.fetch_add(1, std::memory_order_seq_cst);
  if (words->asleep.load(std::memory_order_seq_cst) != 0) file->notify();
}

Doorbell::Doorbell(DoorbellWords& words, std::shared_ptr<const EventFd> file) : button_{&words, std::move(file)} {}

// The load of `rings` has acquire order, so that a thread that gets true from hear() sees the memory writes that other
// threads made before their calls of ring().
bool Doorbell::hear() {
  const std::uint64_t rings = button_.words->rings.load(std::memory_order_acquire);
  return heard_.exchange(rings) != rings;
}

}  // namespace lockstep::wire
