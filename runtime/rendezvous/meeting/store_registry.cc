// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/store_registry.h"

namespace lockstep::rendezvous {

StoreRegistry& StoreRegistry::of_process() {
  static StoreRegistry visits;
  return visits;
}

std::shared_ptr<OwnedStore> StoreRegistry::find(int rank, const std::string& place) {
  MutexLock lock(mutex_);
  const auto found = stores_.find({rank, place});
  return found == stores_.end() ? nullptr : found->second.lock();
}

void StoreRegistry::add(int rank, const std::string& place, const std::shared_ptr<OwnedStore>& owned) {
  MutexLock lock(mutex_);
  std::erase_if(stores_, [](const auto& entry) { return entry.second.expired(); });
  stores_[{rank, place}] = owned;
}

bool StoreRegistry::has_used(int rank, const std::string& token) {
  MutexLock lock(mutex_);
  return tokens_.contains({rank, token});
}

void StoreRegistry::mark_used(int rank, const std::string& token) {
  MutexLock lock(mutex_);
  tokens_.insert({rank, token});
}

}  // namespace lockstep::rendezvous
