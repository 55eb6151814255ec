// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/group_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/store/store_internals.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

using membership::MemberEvent;

// How long the link may need to say what became of a store that another connection has lost.
constexpr std::chrono::seconds kLinkIsBehind{2};

// "rank 0 (host n1, pid 4711), which hosts the store at 10.0.0.7:29400, is lost", or the same of a launcher, or of the
// one of this host that is the way there.
std::string text_of(const MemberEvent& event, bool is_rank_zero) {
  const std::string who = event.host ? event.host->describe() : "a process that did not say";
  if (event.is_of_relay) {
    return fmt::format("the launcher of this host ({}), which has this rank's membership at {}, {}", who, event.address,
                       event.cause.text);
  }
  return fmt::format("{} ({}), which hosts the store at {}, {}", is_rank_zero ? "rank 0" : "the launcher", who,
                     event.address, event.cause.text);
}

Consequence of_the_store(const MemberEvent& event, StoreHost store_host, int rank, bool host_has_left) {
  const bool is_rank_zero = store_host == StoreHost::rank_zero;
  Cause cause = event.cause;
  cause.text = text_of(event, is_rank_zero);
  cause.reporter = rank;
  if (event.host) {
    cause.host = event.host->host;
    cause.pid = event.host->pid;
  }
  if (event.kind == MemberEvent::Kind::store_answers) return {Consequence::Kind::warn, cause};
  if (is_rank_zero && (host_has_left || rank == 0)) return {};
  if (is_rank_zero) {
    cause.rank = 0;
    return {Consequence::Kind::fail, cause};
  }
  // A launcher that is only stopped, as by Ctrl-Z, computes nothing that the ranks wait for.
  if (event.kind == MemberEvent::Kind::store_silent && event.host_answers) {
    cause.text += "; the job continues, but until it answers again the loss of a rank may be found late";
    return {Consequence::Kind::warn, cause};
  }
  return {Consequence::Kind::fail, cause};
}

// How far `group` has brought the rank: of several groups the training may be another's than the job's.
void add_steps(membership::MemberPosition& position, const ProcessGroup& group) {
  position.step = std::max(position.step, group.internals().step());
  position.steps_done = std::max(position.steps_done, group.internals().coordinated_stop()->steps_done());
}

// The end of a rank, not of what it did in one group.
bool is_end_of_rank(const Cause& cause) {
  return cause.rank >= 0 && (cause.kind == Cause::Kind::lost || cause.kind == Cause::Kind::silent);
}

}  // namespace

Consequence consequence_of(const MemberEvent& event, StoreHost store_host, int rank, bool host_has_left) {
  switch (event.kind) {
    case MemberEvent::Kind::lost:
    case MemberEvent::Kind::failed:
    case MemberEvent::Kind::silent: return {Consequence::Kind::fail, event.cause};
    case MemberEvent::Kind::left: return {};
    case MemberEvent::Kind::store_lost:
    case MemberEvent::Kind::store_silent:
    case MemberEvent::Kind::store_answers: return of_the_store(event, store_host, rank, host_has_left);
  }
  return {};
}

void GroupWatch::begin(std::weak_ptr<membership::MemberLink> link) {
  MutexLock lock(mutex_);
  has_begun_ = true;
  link_ = std::move(link);
}

void GroupWatch::report_failure(const Cause& cause) {
  if (!cause.ends_group) return report(cause);
  std::call_once(reported_, [&] { report(cause); });
}

void GroupWatch::report_failure_of_subgroup(const Cause& cause) {
  if (!cause.ends_group || is_end_of_rank(cause)) return report_failure(cause);
  MutexLock lock(mutex_);
  const ProcessGroup* const job = job_group();
  kept_ = {cause, job == nullptr ? 0 : job->internals().last_sequence()};
}

void GroupWatch::report_deferred() {
  Cause cause;
  {
    MutexLock lock(mutex_);
    const ProcessGroup* const job = job_group();
    if (!kept_ || job == nullptr || job->internals().last_sequence() != kept_->sequence) return;
    cause = kept_->cause;
  }
  report_failure(cause);
}

void GroupWatch::report(Cause cause) {
  std::shared_ptr<membership::MemberLink> link;
  {
    MutexLock lock(mutex_);
    link = link_.lock();
    for (const Attached& attached : groups_) {
      if (cause.step < 0) cause.step = attached.group->internals().step();
      if (cause.bucket < 0) cause.bucket = attached.group->internals().bucket();
    }
  }
  // Without the lock: report() waits for the store's answer, and the link's thread needs the lock for its next event.
  if (!link) return;
  cause.restarts = restarts_;
  link->report(cause);
}

void GroupWatch::note_failure(const Failure& failure) {
  // Waits at the stores end before the groups fail: a rank that still waits there for its peers has no group yet.
  failures_.push_back(failure);
  const bool is_first = failures_.size() == 1;
  for (const auto& waited_at : stores_) {
    const auto store = waited_at.lock();
    if (store && is_first) store->stop_waiting();
    if (store && failure.is_of_store) store::give_up(*store);
  }
}

void GroupWatch::take(const MemberEvent& event) {
  Consequence consequence;
  std::vector<ProcessGroup*> concerned;
  {
    MutexLock lock(mutex_);
    if (event.kind == MemberEvent::Kind::left && event.cause.rank == 0) host_has_left_ = true;
    consequence = consequence_of(event, store_host_, rank_, host_has_left_);
    if (consequence.kind == Consequence::Kind::fail) {
      note_failure({consequence.cause,
                    event.kind == MemberEvent::Kind::store_lost || event.kind == MemberEvent::Kind::store_silent});
      for (const Attached& attached : groups_) concerned.push_back(attached.group);
    }
    if (event.kind == MemberEvent::Kind::store_lost) store_is_lost_ = true;
    changed_.notify_all();
  }
  if (consequence.kind == Consequence::Kind::warn) log_warn("{}", consequence.cause.text);
  // Also those after the first: of that one a group may think otherwise (GroupInternals::on_peer_failure).
  const Failure failure{consequence.cause,
                        event.kind == MemberEvent::Kind::store_lost || event.kind == MemberEvent::Kind::store_silent};
  for (ProcessGroup* const group : concerned) fail_group(*group, failure);
}

bool GroupWatch::Failure::concerns(const rendezvous::Roster& roster) const {
  if (is_of_store || roster.front().group.empty()) return true;
  const bool is_of_rank = is_end_of_rank(cause) || cause.kind == Cause::Kind::failed;
  return is_of_rank && comm::rank_in(roster, cause.rank).has_value();
}

// A group that was detached meanwhile is left alone.
void GroupWatch::fail_group(ProcessGroup& group, const Failure& failure) {
  {
    MutexLock lock(mutex_);
    Attached* const attached = find(group);
    if (attached == nullptr || !failure.concerns(group.roster())) return;
    // Counted, since on_peer_failure() may take long: detach() waits for the count, and the group outlives the call.
    ++attached->calls;
  }
  try {
    group.internals().on_peer_failure(failure.cause);
  } catch (
      const std::exception& error) {  // what this group lacks keeps no other from its failure, and no detach() waiting
    log_error("group '{}' could not react to a failure of the job ({}): {}; end this run if the group hangs",
              group.name(), failure.cause.text, error.what());
  }
  MutexLock lock(mutex_);
  --find(group)->calls;
  changed_.notify_all();
}

void GroupWatch::check(const rendezvous::Roster* of) {
  std::optional<Cause> first;
  {
    MutexLock lock(mutex_);
    for (const Failure& failure : failures_) {
      if (!first && (of == nullptr || failure.concerns(*of))) first = failure.cause;
    }
  }
  if (!first) return;
  report_failure(*first);
  throw make_error<PeerLost>(first->as_read_by(rank_));
}

void GroupWatch::check_after_loss() {
  const Deadline deadline = Deadline::after(kLinkIsBehind);
  {
    MutexLock lock(mutex_);
    while (has_begun_ && failures_.empty() && !store_is_lost_ && !deadline.expired()) {
      changed_.wait_until(mutex_, deadline);
    }
  }
  check();
}

void GroupWatch::stop_with_failure(const std::shared_ptr<store::Store>& store) {
  MutexLock lock(mutex_);
  stores_.push_back(store);
  for (const Failure& failure : failures_) failure.is_of_store ? store::give_up(*store) : store->stop_waiting();
}

membership::MemberPosition GroupWatch::position() {
  MutexLock lock(mutex_);
  membership::MemberPosition position = last_position_;
  if (const ProcessGroup* const job = job_group()) {
    position.sequence = job->internals().last_sequence();
    position.collective = job->internals().last_collective();
  }
  for (const Attached& attached : groups_) add_steps(position, *attached.group);
  position.totals = trace::encode(trace::totals());
  return position;
}

GroupWatch::Attached* GroupWatch::find(const ProcessGroup& group) {
  const auto found = std::ranges::find_if(groups_, [&](const Attached& attached) { return attached.group == &group; });
  return found == groups_.end() ? nullptr : &*found;
}

ProcessGroup* GroupWatch::job_group() {
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [](const Attached& attached) { return attached.group->name().empty(); });
  return found == groups_.end() ? nullptr : found->group;
}

void GroupWatch::attach(ProcessGroup& group) {
  std::vector<Failure> before;
  {
    MutexLock lock(mutex_);
    // Entered and read under one lock: the group hears of each failure once, here or from take().
    groups_.push_back({&group});
    before = failures_;
  }
  for (const Failure& failure : before) fail_group(group, failure);
}

void GroupWatch::detach(ProcessGroup& group) {
  // Read while the group is still attached: heartbeats tell its last collective after its end.
  membership::MemberPosition reached = position();
  MutexLock lock(mutex_);
  while (find(group) != nullptr && find(group)->calls > 0) changed_.wait(mutex_);
  std::erase_if(groups_, [&](const Attached& attached) { return attached.group == &group; });
  last_position_ = std::move(reached);
}

}  // namespace lockstep
