// SPDX-License-Identifier: Apache-2.0
// BarrierTable knows the barriers of PyTorch's BARRIER request, and the connections in each barrier.
//
// One thread uses a BarrierTable. The table knows neither time nor sockets; the caller gives waiters their numbers.
// When as many waiters as a barrier's world size have arrived at the barrier's name, all these waiters are released at
// once and the name is free again.
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
    // True if the waiter was the last to arrive. The waiter may then proceed, and take_released() returns the waiters
    // that arrived earlier.
    bool complete = false;
    // The reason why the waiter can't be in this barrier, with nothing changed; empty if there is no reason.
    std::string refusal = {};
  };
  // Lets `waiter` arrive at a barrier. REQUIRES: `waiter` is in no barrier.
  Arrival arrive(WaiterId waiter, std::string_view name, std::int64_t world_size);
  // Forgets a waiter, as if the waiter had not arrived. Does nothing if the waiter is in no barrier.
  void leave(WaiterId waiter);
  // Returns the waiters that were released since the last take_released(), except each barrier's last waiter to arrive.
  // The returned waiters are in no barrier any more.
  std::vector<WaiterId> take_released();

 private:
  struct Barrier {
    std::int64_t world_size = 0;
    std::set<WaiterId> arrived = {};
  };
  using Barriers = std::unordered_map<std::string, Barrier>;

  Barriers barriers_;
  // The waiters in a barrier, each with a pointer into barriers_, whose elements have stable addresses.
  std::unordered_map<WaiterId, Barriers::pointer> inside_;
  std::vector<WaiterId> released_;
};

}  // namespace lockstep::store
