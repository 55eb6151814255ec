// SPDX-License-Identifier: Apache-2.0
// Joins a rank's groups to the job's membership (membership/member_link.h): what befalls another rank fails at once
// every group that has it, and what ends a group is said to all.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/store/store.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/member_link.h"

namespace lockstep {

// The consequence of an event for the group of `rank`. Pure.
struct Consequence {
  enum class Kind {
    none,
    warn,  // worth a line in the log
    fail,  // PeerLost
  };
  Kind kind = Kind::none;
  Cause cause = {};  // rank -1: the launcher, which hosts the store and is not in the group
};
// The process that hosts the job's store.
enum class StoreHost { rank_zero, launcher };
// `host_has_left`: rank 0 has said goodbye; a store that it hosts may end with it.
Consequence consequence_of(const membership::MemberEvent& event, StoreHost store_host, int rank, bool host_has_left);

// Passes events on to the groups. It is there before the others are known, so that a rank that dies while they meet
// ends their waiting (watched_store.h). Any thread.
//
// The job's group is the one without a name. It fails with every cause that is told. Any other group fails with the
// ends of its own ranks and of the store; a timeout or a mismatch that ended the job's group alone does not fail it.
class GroupWatch {
 public:
  // `restarts`: how often the job was restarted.
  GroupWatch(StoreHost store_host, int rank, int restarts = 0)
      : store_host_(store_host), rank_(rank), restarts_(restarts) {}

  // Events come from now on. Reports go to `link`.
  void begin(std::weak_ptr<membership::MemberLink> link) EXCLUDES(mutex_);
  // Tells the job's membership why this rank's group has failed, once: the first cause. Every other call waits until
  // that is done, at most for a moment. A cause that the group survives is told each time.
  void report_failure(const Cause& cause) EXCLUDES(mutex_);
  // The same of a group within the job's. The end of a rank is the job's too, and reported; any other cause ends that
  // group alone, and is kept for report_deferred().
  void report_failure_of_subgroup(const Cause& cause) EXCLUDES(mutex_);
  // For the job's group when an exception ends it: reports the cause that was kept last, of which that exception is a
  // consequence, unless the job's group has done something since.
  void report_deferred() EXCLUDES(mutex_);
  void take(const membership::MemberEvent& event) EXCLUDES(mutex_);
  // Throws PeerLost with the first failure that came, if any has; with a roster, the first that fails such a group.
  void check(const rendezvous::Roster* of = nullptr) EXCLUDES(mutex_);
  // For who has lost the store. The link, which is told why the store's host ends before it ends, or sees the end as
  // well, may be a moment behind: waits for it, then as check().
  void check_after_loss() EXCLUDES(mutex_);
  // Calls store.stop_waiting() once there is a failure, or now if there is one; of the store, give_up().
  void stop_with_failure(const std::shared_ptr<store::Store>& store) EXCLUDES(mutex_);
  // The last collective of the job's group and the furthest step of any group; after its end, as they were then.
  membership::MemberPosition position() EXCLUDES(mutex_);
  // From now on events are the group's too, the failures that came before as well; until detach(), which waits for the
  // call that is under way. The group is called with no lock held.
  void attach(ProcessGroup& group) EXCLUDES(mutex_);
  void detach(ProcessGroup& group) EXCLUDES(mutex_);

 private:
  struct Attached {
    ProcessGroup* group = nullptr;
    int calls = 0;  // of it, under way
  };
  struct Failure {
    Cause cause;
    bool is_of_store = false;

    bool concerns(const rendezvous::Roster& roster) const;
  };
  struct Kept {
    Cause cause;
    std::int64_t sequence = 0;  // of the job's group then
  };

  void note_failure(const Failure& failure) REQUIRES(mutex_);
  void fail_group(ProcessGroup& group, const Failure& failure) EXCLUDES(mutex_);
  void report(Cause cause) EXCLUDES(mutex_);
  Attached* find(const ProcessGroup& group) REQUIRES(mutex_);
  ProcessGroup* job_group() REQUIRES(mutex_);

  const StoreHost store_host_;
  const int rank_;
  const int restarts_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Attached> groups_ GUARDED_BY(mutex_);
  std::vector<Failure> failures_ GUARDED_BY(mutex_);  // in the order in which they came
  std::optional<Kept> kept_ GUARDED_BY(mutex_);
  std::weak_ptr<membership::MemberLink> link_ GUARDED_BY(mutex_);
  std::once_flag reported_;
  std::vector<std::weak_ptr<store::Store>> stores_ GUARDED_BY(mutex_);  // whose waits end with it
  membership::MemberPosition last_position_ GUARDED_BY(mutex_);
  bool host_has_left_ GUARDED_BY(mutex_) = false;
  bool has_begun_ GUARDED_BY(mutex_) = false;
  bool store_is_lost_ GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
