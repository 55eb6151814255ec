// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/doorbell.h"

#include "runtime/comm/futex.h"

namespace lockstep::wire {

void DoorbellWords::ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (asleep.load(std::memory_order_seq_cst) != 0) comm::futex_wake_all(rings);
}

void Doorbell::wait(const Deadline& deadline) {
  std::uint64_t rings = words_.rings.load(std::memory_order_acquire);
  if (rings == heard_) {
    words_.asleep.store(1, std::memory_order_seq_cst);
    for (;;) {
      rings = words_.rings.load(std::memory_order_seq_cst);
      if (rings != heard_ || deadline.expired()) break;
      comm::futex_wait(words_.rings, rings, deadline.remaining());
    }
    words_.asleep.store(0, std::memory_order_relaxed);
  }
  heard_ = rings;
}

}  // namespace lockstep::wire
