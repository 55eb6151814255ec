// SPDX-License-Identifier: Apache-2.0
// Joins a group to the job's membership (membership/member_link.h): what befalls another rank fails the group at once,
// and the group's end is said to all.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/store/store.h"
#include "runtime/membership/member_link.h"

namespace lockstep {

// What an event means for the group of `rank`. Pure.
struct Consequence {
  enum class Kind {
    none,
    warn,  // worth a line in the log
    fail,  // PeerLost
  };
  Kind kind = Kind::none;
  Cause cause = {};  // rank -1: the launcher, which hosts the store and is none of the group
};
// Who hosts the job's store.
enum class StoreHost { rank_zero, launcher };
// `host_has_left`: rank 0 has said goodbye; a store that it hosts may end with it.
Consequence consequence_of(const membership::MemberEvent& event, StoreHost store_host, int rank, bool host_has_left);

// Passes events on to the group. It is there before the others are known, so that a rank that dies while they meet
// ends their waiting (watched_store.h). Any thread.
class GroupWatch {
 public:
  // `generation`: how often the job was restarted.
  GroupWatch(StoreHost store_host, int rank, int generation = 0)
      : store_host_(store_host), rank_(rank), generation_(generation) {}

  // Events come from now on. What is filed goes to `link`.
  void begin(std::weak_ptr<membership::MemberLink> link) EXCLUDES(mutex_);
  // Tells the job's membership why this rank's group has failed, once: the first cause. Every other call waits until
  // that is done, at most for a moment. A cause that the group survives is told each time.
  void file(const Cause& cause) EXCLUDES(mutex_);
  void take(const membership::MemberEvent& event) EXCLUDES(mutex_);
  // Throws PeerLost with the first failure that came, if any has.
  void check() EXCLUDES(mutex_);
  // For who has lost the store. The link, which is told why the store's host ends before it ends, or sees the end as
  // well, may be a moment behind: waits for it, then as check().
  void check_after_loss() EXCLUDES(mutex_);
  // Throws StoreError if the store is known to be lost or silent, so that nobody waits for its answer.
  void check_store() EXCLUDES(mutex_);
  // Calls store.stop_waiting() once there is a failure, or now if there is one; of the store, give_up().
  void stop_with_failure(const std::shared_ptr<store::Store>& store) EXCLUDES(mutex_);
  // What the group is at; after its end, what it was at.
  membership::MemberPosition position() EXCLUDES(mutex_);
  // From now on events are the group's, the first failure that came before too; until detach(), which waits for the
  // call that is under way. The group is called with no lock held.
  void attach(ProcessGroup& group) EXCLUDES(mutex_);
  void detach() EXCLUDES(mutex_);

 private:
  void fail_group(const Cause& cause) EXCLUDES(mutex_);
  void report(Cause cause) EXCLUDES(mutex_);

  const StoreHost store_host_;
  const int rank_;
  const int generation_;
  Mutex mutex_;
  Condition changed_;
  ProcessGroup* group_ GUARDED_BY(mutex_) = nullptr;
  int calls_ GUARDED_BY(mutex_) = 0;               // of the group, under way
  std::optional<Cause> first_ GUARDED_BY(mutex_);  // failure
  std::weak_ptr<membership::MemberLink> link_ GUARDED_BY(mutex_);
  std::once_flag filed_;
  std::vector<std::weak_ptr<store::Store>> stores_ GUARDED_BY(mutex_);  // whose waits end with it
  membership::MemberPosition last_position_ GUARDED_BY(mutex_);
  bool host_has_left_ GUARDED_BY(mutex_) = false;
  std::optional<std::string> store_problem_ GUARDED_BY(mutex_);
  bool has_begun_ GUARDED_BY(mutex_) = false;
  bool store_is_lost_ GUARDED_BY(mutex_) = false;
};

// A group and what must end after it, in this order: the group says goodbye in its own way, then the link, and then the
// store, which rank 0 may host, waits for the others to leave.
class WatchedGroup {
 public:
  WatchedGroup(std::shared_ptr<store::Store> store, std::shared_ptr<GroupWatch> watch)
      : store_(std::move(store)), watch_(std::move(watch)) {}
  ~WatchedGroup();
  WatchedGroup(const WatchedGroup&) = delete;
  WatchedGroup& operator=(const WatchedGroup&) = delete;

  const std::shared_ptr<GroupWatch>& watch() const { return watch_; }
  // The link that the watch hears the events of.
  void keep(std::shared_ptr<membership::MemberLink> link);
  // Takes the group, which nobody else holds; the result, and its copies, keep all of it.
  static std::shared_ptr<ProcessGroup> hold(std::unique_ptr<WatchedGroup> self, std::shared_ptr<ProcessGroup> group);

 private:
  std::shared_ptr<store::Store> store_;
  std::shared_ptr<GroupWatch> watch_;
  std::shared_ptr<membership::MemberLink> link_;
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace lockstep
