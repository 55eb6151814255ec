// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/group_watch.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/stop_latch.h"

namespace lockstep {
namespace {

using membership::MemberEvent;

// How long the link may need to say what became of a store that another connection has lost.
constexpr std::chrono::seconds kLinkIsBehind{2};

// "rank 0 (host n1, pid 4711), which hosts the store at 10.0.0.7:29400, is lost", or the same of a launcher.
std::string text_of(const MemberEvent& event, bool is_rank_zero) {
  const std::string who = event.host ? event.host->describe() : "a process that did not say";
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
    cause.text += "; the job goes on, but until it answers again the loss of a rank may be found late";
    return {Consequence::Kind::warn, cause};
  }
  return {Consequence::Kind::fail, cause};
}

membership::MemberPosition position_of(const ProcessGroup& group) {
  return {.sequence = group.last_sequence(),
          .collective = std::string(group.last_collective()),
          .step = group.step(),
          .steps_done = group.stop_latch()->steps_done()};
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

void GroupWatch::file(const Cause& cause) {
  if (!cause.ends_group) return report(cause);
  std::call_once(filed_, [&] { report(cause); });
}

void GroupWatch::report(Cause cause) {
  std::shared_ptr<membership::MemberLink> link;
  {
    MutexLock lock(mutex_);
    link = link_.lock();
    if (group_ != nullptr && cause.step < 0) cause.step = group_->step();
    if (group_ != nullptr && cause.bucket < 0) cause.bucket = group_->bucket();
  }
  if (!link) return;
  cause.generation = generation_;
  link->report(cause);
}

void GroupWatch::take(const MemberEvent& event) {
  Consequence consequence;
  {
    MutexLock lock(mutex_);
    if (event.kind == MemberEvent::Kind::left && event.cause.rank == 0) host_has_left_ = true;
    consequence = consequence_of(event, store_host_, rank_, host_has_left_);
    if (consequence.kind == Consequence::Kind::fail) {
      if (!first_) {
        first_ = consequence.cause;
        for (const auto& waited_at : stores_) {
          if (const auto store = waited_at.lock()) store->stop_waiting();
        }
      }
      const bool is_of_the_store =
          event.kind == MemberEvent::Kind::store_lost || event.kind == MemberEvent::Kind::store_silent;
      if (is_of_the_store) {
        store_problem_ = consequence.cause.text;
        for (const auto& waited_at : stores_) {
          if (const auto store = waited_at.lock()) store->give_up();
        }
      }
    }
    if (event.kind == MemberEvent::Kind::store_answers) store_problem_.reset();
    if (event.kind == MemberEvent::Kind::store_lost) store_is_lost_ = true;
    changed_.notify_all();
  }
  if (consequence.kind == Consequence::Kind::warn) log_warn("{}", consequence.cause.text);
  // Also those after the first: of that one the group may think otherwise (ProcessGroup::lose).
  if (consequence.kind == Consequence::Kind::fail) fail_group(consequence.cause);
}

// The group may ask the store, and wait for others, before it has failed.
void GroupWatch::fail_group(const Cause& cause) {
  ProcessGroup* group = nullptr;
  {
    MutexLock lock(mutex_);
    if (group_ == nullptr) return;
    group = group_;
    ++calls_;
  }
  group->lose(cause);
  MutexLock lock(mutex_);
  --calls_;
  changed_.notify_all();
}

void GroupWatch::check() {
  std::optional<Cause> first;
  {
    MutexLock lock(mutex_);
    first = first_;
  }
  if (!first) return;
  file(*first);
  throw PeerLost(first->as_read_by(rank_));
}

void GroupWatch::check_after_loss() {
  const Deadline deadline = Deadline::after(kLinkIsBehind);
  {
    MutexLock lock(mutex_);
    while (has_begun_ && !first_ && !store_is_lost_ && !deadline.expired()) changed_.wait_until(mutex_, deadline);
  }
  check();
}

void GroupWatch::check_store() {
  MutexLock lock(mutex_);
  if (store_problem_) throw StoreError(*store_problem_);
}

void GroupWatch::stop_with_failure(const std::shared_ptr<store::Store>& store) {
  MutexLock lock(mutex_);
  stores_.push_back(store);
  if (first_) store->stop_waiting();
  if (store_problem_) store->give_up();
}

membership::MemberPosition GroupWatch::position() {
  MutexLock lock(mutex_);
  return group_ == nullptr ? last_position_ : position_of(*group_);
}

void GroupWatch::attach(ProcessGroup& group) {
  std::optional<Cause> first;
  {
    MutexLock lock(mutex_);
    group_ = &group;
    first = first_;
  }
  if (first) fail_group(*first);
}

void GroupWatch::detach() {
  MutexLock lock(mutex_);
  if (group_ == nullptr) return;
  last_position_ = position_of(*group_);
  group_ = nullptr;
  while (calls_ > 0) changed_.wait(mutex_);
}

// The watch lets the group go first, or an event could call into a group that is being destroyed. The group says
// goodbye while the link still stands: a rank whose link ended first is a dead one to the others. The store, a member
// of this object, goes last: the other two need it.
WatchedGroup::~WatchedGroup() {
  watch_->detach();
  group_.reset();
  link_.reset();
}

void WatchedGroup::keep(std::shared_ptr<membership::MemberLink> link) {
  link_ = std::move(link);
  watch_->begin(link_);
}

std::shared_ptr<ProcessGroup> WatchedGroup::hold(std::unique_ptr<WatchedGroup> self,
                                                 std::shared_ptr<ProcessGroup> group) {
  self->group_ = std::move(group);
  self->watch_->attach(*self->group_);
  ProcessGroup* const face = self->group_.get();
  return {std::shared_ptr<WatchedGroup>(std::move(self)), face};
}

}  // namespace lockstep
