#include "runtime/store/barrier_table.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::store {

BarrierTable::Arrival BarrierTable::arrive(WaiterId waiter, std::string_view name, std::optional<std::int64_t> rank,
                                           std::int64_t world_size) {
  const auto refuse = [](std::string why) { return Arrival{.refusal = std::move(why)}; };
  if (world_size < 1 || (rank && (*rank < 0 || *rank >= world_size))) {
    return refuse(
        fmt::format("barrier '{}': rank {} is not in a world of {} ranks", name, rank.value_or(0), world_size));
  }
  const std::int64_t place = rank ? *rank : static_cast<std::int64_t>(waiter);
  const auto [found, is_new] = barriers_.try_emplace(Name{rank.has_value(), std::string(name)});
  Barrier& barrier = found->second;
  if (is_new) barrier.world_size = world_size;
  if (barrier.world_size != world_size) {
    return refuse(fmt::format("barrier '{}': this client says {} ranks, the {} inside say {}; all must agree", name,
                              world_size, barrier.arrived.size(), barrier.world_size));
  }
  if (!barrier.arrived.emplace(place, waiter).second) {
    return refuse(
        fmt::format("barrier '{}': rank {} is in it already; has a second process the same rank, or another "
                    "thread of this one the same name?",
                    name, place));
  }
  barrier.gave_up.erase(place);
  barrier.missing.reset();
  if (static_cast<std::int64_t>(barrier.arrived.size()) < world_size) {
    places_.emplace(waiter, Place{&*found, place});
    return {};
  }
  released_.reserve(released_.size() + barrier.arrived.size());
  for (const auto& [inside, id] : barrier.arrived) {
    if (id == waiter) continue;
    released_.push_back(id);
    places_.erase(id);
  }
  barriers_.erase(found);
  return {.complete = true};
}

void BarrierTable::leave(WaiterId waiter) {
  std::erase(released_, waiter);
  const auto found = places_.find(waiter);
  if (found == places_.end()) return;
  found->second.barrier->second.missing.reset();
  take_out(found);
}

void BarrierTable::give_up(WaiterId waiter) {
  const auto found = places_.find(waiter);
  if (found == places_.end()) return;
  found->second.barrier->second.gave_up.insert(found->second.rank);
  take_out(found);
}

void BarrierTable::take_out(std::unordered_map<WaiterId, Place>::iterator place) {
  auto& [name, barrier] = *place->second.barrier;
  barrier.arrived.erase(place->second.rank);
  if (barrier.arrived.empty()) barriers_.erase(barriers_.find(name));
  places_.erase(place);
}

BarrierTable::Missing BarrierTable::missing(WaiterId waiter) {
  const auto found = places_.find(waiter);
  if (found == places_.end()) return {};
  auto& [name, barrier] = *found->second.barrier;
  if (!barrier.missing) barrier.missing = find_missing(name.ranked, barrier);
  return *barrier.missing;
}

BarrierTable::Missing BarrierTable::find_missing(bool ranked, const Barrier& barrier) {
  Missing result;
  const auto came = static_cast<std::int64_t>(barrier.arrived.size() + barrier.gave_up.size());
  if (ranked && came == barrier.world_size) {
    result.count = static_cast<std::int64_t>(barrier.gave_up.size());
    for (const std::int64_t rank : barrier.gave_up) {
      if (result.ranks.size() < Missing::kListed) result.ranks.push_back(rank);
    }
    return result;
  }
  result.count = barrier.world_size - (ranked ? came : static_cast<std::int64_t>(barrier.arrived.size()));
  if (!ranked) return result;
  auto arrived = barrier.arrived.begin();
  for (std::int64_t rank = 0; rank < barrier.world_size && result.ranks.size() < Missing::kListed; ++rank) {
    if (arrived != barrier.arrived.end() && arrived->first == rank) {
      ++arrived;
    } else if (!barrier.gave_up.contains(rank)) {
      result.ranks.push_back(rank);
    }
  }
  return result;
}

std::vector<BarrierTable::WaiterId> BarrierTable::take_released() { return std::exchange(released_, {}); }

}  // namespace lockstep::store
