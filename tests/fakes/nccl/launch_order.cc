// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/launch_order.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

namespace lockstep::fake_nccl {
namespace {

Launches& launches_of(World& world, int rank) { return world.shared().launches[rank]; }

std::uint64_t communicator_of(const std::string& id) { return std::hash<std::string>()(id); }

// "communicator 1f3a", as the end of its id has it.
std::string name_of(const std::string& id) {
  return "communicator " + id.substr(id.size() - std::min(id.size(), std::size_t{8}));
}

// The rank of `world` that has the place of rank `peer` of `other`; -1 if none has.
int rank_at_place_of(World& world, World& other, int peer) {
  for (int r = 0; r < world.size(); ++r) {
    if (std::strcmp(world.shared().places[r], other.shared().places[peer]) == 0) return r;
  }
  return -1;
}

// Launches of `communicator` before that of the record; nothing if there were too many communicators to note them all.
std::optional<std::uint64_t> before(const Launches::Record& record, std::uint64_t communicator) {
  for (const auto& noted : record.before) {
    if (noted.communicator == communicator) return noted.launches;
    if (noted.communicator == 0) return 0;  // it had launched nothing, or was not there yet
  }
  return std::nullopt;
}

}  // namespace

// Never destroyed: threads of the fake may outlive main().
LaunchOrder& LaunchOrder::get() {
  static LaunchOrder* const order = new LaunchOrder;
  return *order;
}

void LaunchOrder::forget(World& world) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Known& known) { return known.world == &world; };
  const auto found = std::find_if(all_.begin(), all_.end(), is_it);
  if (found == all_.end()) return;
  const std::uint64_t communicator = communicator_of(found->id);
  ended_.insert(ended_.begin(), {communicator, launches_of(world, found->rank).count.load(), found->device});
  all_.erase(found);
  // Once no rank can launch on it, it would only take the places of others in the notes.
  if (world.shared().ended.fetch_add(1) + 1 == static_cast<std::uint32_t>(world.size())) {
    std::erase_if(ended_, [&](const Ended& ended) { return ended.communicator == communicator; });
  }
  ended_.resize(std::min(ended_.size(), kMostBefore * kMostBefore));
}

std::string LaunchOrder::launched(const std::string& id, World& world, int rank, int device) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Known& known) { return known.world == &world; };
  if (std::none_of(all_.begin(), all_.end(), is_it)) all_.push_back({id, &world, rank, device});

  Launches& own = launches_of(world, rank);
  const std::uint64_t number = own.count.load() + 1;
  Launches::Record& record = own.records[number % kKeptLaunches];
  record.number.store(0);
  std::vector<const Known*> others;
  for (const Known& known : all_) {
    if (known.device != device || known.world == &world || others.size() == kMostBefore) continue;
    record.before[others.size()] = {communicator_of(known.id), launches_of(*known.world, known.rank).count.load()};
    others.push_back(&known);
  }
  std::size_t noted = others.size();
  for (const Ended& ended : ended_) {
    if (ended.device == device && noted < kMostBefore) record.before[noted++] = {ended.communicator, ended.launches};
  }
  for (std::size_t k = noted; k < kMostBefore; ++k) record.before[k] = {};
  record.number.store(number);
  own.count.store(number);

  for (int peer = 0; peer < world.size(); ++peer) {
    const Launches& theirs = launches_of(world, peer);
    const Launches::Record& same = theirs.records[number % kKeptLaunches];
    if (peer == rank || theirs.count.load() < number || same.number.load() != number) continue;
    for (std::size_t k = 0; k < others.size(); ++k) {
      const auto there = before(same, record.before[k].communicator);
      if (!there || record.before[k].launches <= *there) continue;
      const int peer_there = rank_at_place_of(*others[k]->world, world, peer);
      const std::uint64_t crossed = *there + 1;
      if (peer_there < 0 || launches_of(*others[k]->world, peer_there).count.load() < crossed) continue;
      const std::string one = "launch " + std::to_string(number) + " of " + name_of(id);
      const std::string other = "launch " + std::to_string(crossed) + " of " + name_of(others[k]->id);
      return "crossed orders on one device: rank " + std::to_string(rank) + " has " + other + " before " + one +
             ", rank " + std::to_string(peer) + " has it behind";
    }
  }
  return {};
}

}  // namespace lockstep::fake_nccl
