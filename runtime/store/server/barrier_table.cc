// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/barrier_table.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::store {

BarrierTable::Arrival BarrierTable::arrive(WaiterId waiter, std::string_view name, std::int64_t world_size) {
  if (world_size < 1) return {.refusal = fmt::format("barrier '{}' of {} ranks; give at least 1", name, world_size)};
  const auto [found, is_new] = barriers_.try_emplace(std::string(name), Barrier{.world_size = world_size});
  Barrier& barrier = found->second;
  if (barrier.world_size != world_size) {
    return {.refusal = fmt::format("barrier '{}': this client says {} ranks, the {} inside say {}; all must agree",
                                   name, world_size, barrier.arrived.size(), barrier.world_size)};
  }
  barrier.arrived.insert(waiter);
  if (static_cast<std::int64_t>(barrier.arrived.size()) < world_size) {
    inside_.emplace(waiter, &*found);
    return {};
  }
  for (const WaiterId other : barrier.arrived) {
    if (other == waiter) continue;
    released_.push_back(other);
    inside_.erase(other);
  }
  barriers_.erase(found);
  return {.complete = true};
}

void BarrierTable::leave(WaiterId waiter) {
  std::erase(released_, waiter);
  const auto found = inside_.find(waiter);
  if (found == inside_.end()) return;
  auto& [name, barrier] = *found->second;
  barrier.arrived.erase(waiter);
  if (barrier.arrived.empty()) barriers_.erase(barriers_.find(name));
  inside_.erase(found);
}

std::vector<BarrierTable::WaiterId> BarrierTable::take_released() { return std::exchange(released_, {}); }

}  // namespace lockstep::store
