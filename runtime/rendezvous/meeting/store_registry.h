// SPDX-License-Identifier: Apache-2.0
// The stores that ranks of this process hold or have left. One table per process: its threads may be several ranks.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/rendezvous/meeting/owned_store.h"

namespace lockstep::rendezvous {

// The groups of a program may follow each other at one address, socket or file, and until rank 0 has left, the store of
// the earlier one answers there: a rank that came back to it would wait for a rank 0 that waits for this rank to go. A
// group that is made while an earlier one lives is at the earlier one's store, on every rank.
//
// Any thread.
class StoreRegistry {
 public:
  // The registry of this process.
  static StoreRegistry& of_process();

  // The store that `rank` holds at `place`, if it still does.
  std::shared_ptr<OwnedStore> find(int rank, const std::string& place) EXCLUDES(mutex_);
  void add(int rank, const std::string& place, const std::shared_ptr<OwnedStore>& owned) EXCLUDES(mutex_);

  // Whether `rank` has been at the store of that token.
  bool has_used(int rank, const std::string& token) EXCLUDES(mutex_);
  void mark_used(int rank, const std::string& token) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<std::pair<int, std::string>, std::weak_ptr<OwnedStore>> stores_ GUARDED_BY(mutex_);
  std::set<std::pair<int, std::string>> tokens_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::rendezvous
