// SPDX-License-Identifier: Apache-2.0
// The barriers of PyTorch's BARRIER request: which connections are in which.
//
// One thread. Knows neither time nor sockets; waiters are numbers that mean something to the caller. When as many
// waiters as a barrier's world size have arrived at its name, all are released at once and the name is free again.
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
    bool complete = false;     // it was the last: it may proceed, and take_released() returns the others
    std::string refusal = {};  // if not empty, why it can't be in this barrier; nothing has changed
  };
  // `waiter`, which must be in no barrier, arrives.
  Arrival arrive(WaiterId waiter, std::string_view name, std::int64_t world_size);
  // Forgets a waiter, as if it had not come; nothing if it is in no barrier.
  void leave(WaiterId waiter);
  // The waiters, but for the last to arrive, that were released since the last call. They are in no barrier any more.
  std::vector<WaiterId> take_released();

 private:
  struct Barrier {
    std::int64_t world_size = 0;
    std::set<WaiterId> arrived = {};
  };
  using Barriers = std::unordered_map<std::string, Barrier>;

  Barriers barriers_;
  std::unordered_map<WaiterId, Barriers::pointer> inside_;  // to elements of barriers_, which stay where they are
  std::vector<WaiterId> released_;
};

}  // namespace lockstep::store
