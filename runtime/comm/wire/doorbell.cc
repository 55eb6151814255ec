// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/doorbell.h"

#include <utility>

namespace lockstep::wire {

// The addition and the load are sequentially consistent, like the sleeper's two operations (doorbell.h). With a weaker
// order the load could pass the addition: the ringer would find nobody asleep, and the sleeper would find no ring and
// sleep for ever.
void DoorbellButton::ring() const {
  words->rings.fetch_add(1, std::memory_order_seq_cst);
  if (words->asleep.load(std::memory_order_seq_cst) != 0) file->notify();
}

Doorbell::Doorbell(DoorbellWords& words, std::shared_ptr<const EventFd> file) : button_{&words, std::move(file)} {}

// The load is an acquire, so the owner that hears a ring sees the writes that came before the ring.
bool Doorbell::hear() {
  const std::uint64_t rings = button_.words->rings.load(std::memory_order_acquire);
  return heard_.exchange(rings) != rings;
}

}  // namespace lockstep::wire
