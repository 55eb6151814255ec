// Where ranks of this process are, and where they have been. One table per process: threads of it may be several ranks.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/mutex.h"
#include "runtime/rendezvous/meeting/held_store.h"

namespace lockstep::rendezvous {

// The groups of a program may follow each other at one address, socket or file, and until rank 0 has left, the store of
// the earlier one answers there: a rank that came back to it would wait for a rank 0 that waits for this rank to go. A
// group that is made while an earlier one lives is at the earlier one's store, on every rank.
//
// Any thread.
class Visits {
 public:
  // Of this process.
  static Visits& all();

  // The store that `rank` holds at `place`, if it still does.
  std::shared_ptr<HeldStore> alive(int rank, const std::string& place) EXCLUDES(mutex_);
  void keep(int rank, const std::string& place, const std::shared_ptr<HeldStore>& held) EXCLUDES(mutex_);

  // Whether `rank` has been at the store of that token.
  bool has(int rank, const std::string& token) EXCLUDES(mutex_);
  void add(int rank, const std::string& token) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<std::pair<int, std::string>, std::weak_ptr<HeldStore>> held_ GUARDED_BY(mutex_);
  std::set<std::pair<int, std::string>> tokens_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::rendezvous
