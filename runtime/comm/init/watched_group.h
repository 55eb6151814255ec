// SPDX-License-Identifier: Apache-2.0
// A rank's groups, and what must end after the last of them.
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/store/store.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/init/group_watch.h"
#include "runtime/membership/member_link.h"
#include "runtime/membership/scopes.h"

namespace lockstep {

// The link and the store that all groups of a rank need. They end after the last of them, in this order: the link says
// goodbye, and then the store, which rank 0 may host, waits for the others to leave.
class WatchedJob {
 public:
  WatchedJob(std::shared_ptr<store::Store> store, std::shared_ptr<GroupWatch> watch)
      : store_(std::move(store)), watch_(std::move(watch)) {}
  ~WatchedJob();
  WatchedJob(const WatchedJob&) = delete;
  WatchedJob& operator=(const WatchedJob&) = delete;

  const std::shared_ptr<GroupWatch>& watch() const { return watch_; }
  const std::shared_ptr<membership::Scopes>& scopes() const { return scopes_; }
  // The link that the watch hears the events of, and the scopes the words.
  void keep(std::shared_ptr<membership::MemberLink> link);

 private:
  const UnwindGuard unwind_guard_;
  std::shared_ptr<store::Store> store_;
  std::shared_ptr<GroupWatch> watch_;
  const std::shared_ptr<membership::Scopes> scopes_ = std::make_shared<membership::Scopes>();
  std::shared_ptr<membership::MemberLink> link_;
};

class WatchedGroup {
 public:
  // Takes the group, which nobody else holds; the result, and its copies, keep it, and the job.
  static std::shared_ptr<ProcessGroup> hold(std::shared_ptr<WatchedJob> job, std::shared_ptr<ProcessGroup> group);

  WatchedGroup(std::shared_ptr<WatchedJob> job, std::shared_ptr<ProcessGroup> group)
      : job_(std::move(job)), group_(std::move(group)) {}
  ~WatchedGroup();
  WatchedGroup(const WatchedGroup&) = delete;
  WatchedGroup& operator=(const WatchedGroup&) = delete;

 private:
  const UnwindGuard unwind_guard_;
  std::shared_ptr<WatchedJob> job_;
  std::shared_ptr<ProcessGroup> group_;
};

// Makes the groups within a group of `backend`, and within those. `backend` outlives all of them. `job`: null where
// there is no membership.
LOCKSTEP_INTERNAL_API GroupMaker group_maker(const Backend& backend, const std::shared_ptr<WatchedJob>& job);

}  // namespace lockstep
