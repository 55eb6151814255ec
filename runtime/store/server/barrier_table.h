// SPDX-License-Identifier: Apache-2.0
// The barriers of PyTorch's BARRIER request: which connections are in which.
//
// One thread. The table knows neither time nor sockets; the caller gives waiters their numbers. When as many waiters as
// a barrier's world size have arrived at its name, all are released at once and the name is free again.
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
    bool complete = false;  // it was the last to arrive: it may proceed, and take_released() returns the other waiters
    std::string refusal = {};  // the reason why it can't be in this barrier, with nothing changed; empty if it can
  };
  // Lets `waiter`, which is in no barrier, arrive.
  Arrival arrive(WaiterId waiter, std::string_view name, std::int64_t world_size);
  // Forgets a waiter, as if it had not arrived; does nothing if it is in no barrier.
  void leave(WaiterId waiter);
  // The waiters that were released since the last call, except the last to arrive. They are in no barrier any more.
  std::vector<WaiterId> take_released();

 private:
  struct Barrier {
    std::int64_t world_size = 0;
    std::set<WaiterId> arrived = {};
  };
  using Barriers = std::unordered_map<std::string, Barrier>;

  Barriers barriers_;
  std::unordered_map<WaiterId, Barriers::pointer> inside_;  // to elements of barriers_, whose addresses are stable
  std::vector<WaiterId> released_;
};

}  // namespace lockstep::store
