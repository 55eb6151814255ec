// SPDX-License-Identifier: Apache-2.0
// BarrierTable keeps the barriers of PyTorch's BARRIER request, and the connections that wait in each barrier.
//
// One thread uses a BarrierTable. A BarrierTable uses neither clocks nor sockets; the caller identifies each waiter by
// a number. Once `world_size` waiters have arrived at a barrier, the table releases all of these waiters at once and
// removes the barrier. The next waiter that arrives under the barrier's name begins a new barrier.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::store {

class BarrierTable {
 public:
  using WaiterId = std::uint64_t;

  struct Arrival {
    // True if the waiter was the last waiter to arrive at the barrier. The waiter may then proceed, and take_released()
    // returns the waiters that arrived earlier.
    bool complete = false;
    // The reason why the table refuses the waiter, or an empty text if the waiter has arrived. A refusal changes
    // nothing in the table.
    std::string refusal = {};
  };
  // Lets `waiter` arrive at a barrier. REQUIRES: `waiter` is in no barrier.
  Arrival arrive(WaiterId waiter, std::string_view name, std::int64_t world_size);
  // Removes a waiter from the barrier in which it waits, as if the waiter had not arrived. Does nothing if the waiter
  // is in no barrier.
  void leave(WaiterId waiter);
  // Returns the waiters that were released since the last take_released(), except each barrier's last waiter to arrive.
  // The returned waiters have left their barriers and may proceed.
  std::vector<WaiterId> take_released();

 private:
  struct Barrier {
    std::int64_t world_size = 0;
    std::set<WaiterId> arrived = {};
  };
  using Barriers = std::unordered_map<std::string, Barrier>;

  Barriers barriers_;
  // A map from each waiter that is in a barrier to the element of barriers_ for that barrier. Elements of barriers_
  // have stable addresses.
  std::unordered_map<WaiterId, Barriers::pointer> inside_;
  std::vector<WaiterId> released_;
};

}  // namespace lockstep::store
