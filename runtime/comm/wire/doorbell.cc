// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/doorbell.h"

#include <utility>

namespace lockstep::wire {

// Both operations are sequentially consistent, as the sleeper's two are (doorbell.h): with less the load could pass the
// addition, the ringer would find nobody asleep, the sleeper no ring, and it would sleep for ever.
void DoorbellButton::ring() const {
  words->rings.fetch_add(1, std::memory_order_seq_cst);
  if (words->asleep.load(std::memory_order_seq_cst) != 0) file->notify();
}

Doorbell::Doorbell(DoorbellWords& words, std::shared_ptr<const EventFd> file) : button_{&words, std::move(file)} {}

// Acquire: what was written before a ring is visible to the owner that hears it.
bool Doorbell::hear() {
  const std::uint64_t rings = button_.words->rings.load(std::memory_order_acquire);
  return heard_.exchange(rings) != rings;
}

}  // namespace lockstep::wire
