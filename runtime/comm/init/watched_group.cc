// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/watched_group.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "runtime/base/logging.h"
#include "runtime/job/step_board.h"

namespace lockstep {

// The store, a member, goes after the link, which needs it.
WatchedJob::~WatchedJob() {
  link_.reset();
  if (!unwind_guard_.is_unwinding()) keep_program_left();
}

void WatchedJob::keep(std::shared_ptr<membership::MemberLink> link) {
  link_ = std::move(link);
  watch_->begin(link_);
  const std::weak_ptr weak(link_);
  const auto say = [weak](const auto& scope, const auto& ranks, std::string_view word) {
    if (const auto held = weak.lock()) held->say(scope, ranks, word);
  };
  scopes_->begin(say, [weak] {
    const auto held = weak.lock();
    return held && held->is_answered();
  });
}

std::shared_ptr<ProcessGroup> WatchedGroup::hold(std::shared_ptr<WatchedJob> job, std::shared_ptr<ProcessGroup> group) {
  const auto self = std::make_shared<WatchedGroup>(std::move(job), std::move(group));
  self->job_->watch()->attach(*self->group_);
  return {self, self->group_.get()};
}

// The watch lets the group go first, or an event could call into a group that is being destroyed. The group says
// goodbye while the link still stands: a rank whose link ended first is a dead one to the others. The cause that ended
// a group within the job's is reported before the job's group tells of its own end, which is a consequence.
WatchedGroup::~WatchedGroup() {
  if (group_->name().empty() && unwind_guard_.is_unwinding()) job_->watch()->report_deferred();
  job_->watch()->detach(*group_);
  group_.reset();
}

namespace {

const Backend& backend_named(std::string_view name) {
  const auto& all = backends();
  return *std::find_if(all.begin(), all.end(), [&](const Backend& backend) { return backend.name == name; });
}

// Makes what takes a backend of its own also for the groups within it.
std::shared_ptr<ProcessGroup> create_over(const Backend& backend, GroupContext own,
                                          const std::shared_ptr<WatchedJob>& job, const Deadline& deadline) {
  own.make_group = group_maker(backend, job);
  return backend.create(own, deadline);
}

// MPI can't take back a transfer that a failed group has begun: it continues the transfer, in memory that is another's
// by then, whenever any group calls it. So a group within one of MPI's would not fail by itself.
constexpr std::string_view kMpi = "mpi";

// Ranks of one host in a group of several: their parent's backend is there for what lies between hosts.
bool may_share_memory(const Backend& backend, const GroupContext& parent, const GroupContext& own) {
  return own.device.kind == DeviceKind::cpu && rendezvous::count_hosts(own.roster) == 1 &&
         (rendezvous::count_hosts(parent.roster) > 1 || backend.name == kMpi) &&
         backend_named("shm").why_not(own).empty();
}

std::shared_ptr<ProcessGroup> create(const Backend& backend, const GroupContext& parent, const GroupContext& own,
                                     const std::shared_ptr<WatchedJob>& job, const Deadline& deadline) {
  const Backend& otherwise = backend.name == kMpi ? backend_named("tcp") : backend;
  if (may_share_memory(backend, parent, own)) {
    try {
      return create_over(backend_named("shm"), own, job, deadline);
    } catch (const BackendUnavailable& error) {  // on every one of its ranks
      if (own.identity.rank == 0) {
        log_warn(
            "group '{}' can't use shared memory: {}; the group continues over backend '{}'; correct this cause to use "
            "shared memory",
            own.roster.front().group, error.what(), otherwise.name);
      }
    }
  }
  if (backend.name != kMpi) return backend.create(own, deadline);
  return create_over(otherwise, own, job, deadline);
}

}  // namespace

// An object that a group leaves behind, such as a work that is waited for later, has a copy of its context: that must
// not keep the job from ending. While a group lives that can ask for another one, so does the job.
GroupMaker group_maker(const Backend& backend, const std::shared_ptr<WatchedJob>& job) {
  return [of = &backend, of_job = std::weak_ptr<WatchedJob>(job)](const GroupContext& parent, GroupContext own,
                                                                  const Deadline& deadline) {
    const std::shared_ptr<WatchedJob> watched = of_job.lock();
    if (watched) {
      own.check = [watch = watched->watch(), roster = own.roster, of_parent = std::move(own.check)] {
        if (of_parent) of_parent();
        watch->check(&roster);
      };
      own.on_throw = [watch = watched->watch()](const Cause& cause) { watch->report_failure_of_subgroup(cause); };
    }
    auto group = create(*of, parent, own, watched, deadline);
    return released_by_owner(watched ? WatchedGroup::hold(watched, std::move(group)) : std::move(group));
  };
}

}  // namespace lockstep
