// SPDX-License-Identifier: Apache-2.0
// The queue of started collectives, which a member of a shared-memory group and its outstanding works share.
//
// Progress is made by callers alone: every start, poll and wait pushes what has been started before, in order; and
// while the group's own thread is elsewhere, so do the waits for other groups of the process (comm/progress.h). The
// lock is between those two: a wait keeps it while it sleeps, since it makes all progress of its group itself.
//
// Threads: the group's one thread, except push_for_another(), abort() and on_peer_failure() of the session.
#pragma once

#include <array>
#include <memory>

#include "runtime/base/mutex.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/shm/arena.h"
#include "runtime/comm/shm/collective.h"
#include "runtime/comm/shm/p2p_queue.h"
#include "runtime/comm/shm/session.h"

namespace lockstep::shm {

class Operation;

class ShmEngine final : public comm::CallerDrivenGroup, public std::enable_shared_from_this<ShmEngine> {
 public:
  // As Session has them. Waits of other groups push this one from join_process() to close().
  ShmEngine(std::shared_ptr<Mapping> control, Bells bells, rendezvous::Roster roster, int rank,
            std::function<void(const Cause&)> on_throw = {})
      : session_(std::move(control), std::move(bells), std::move(roster), rank, std::move(on_throw)),
        arenas_(rank, session_.size()),
        p2p_queue_(session_, arenas_),
        sources_(static_cast<std::size_t>(session_.size())),
        destinations_(sources_.size()) {}

  Session& session() { return session_; }
  void join_process() { comm::ProgressEngine::of_process().add(shared_from_this()); }

  // Publishes a collective and gives it a push. Blocks only while kRing collectives are in flight.
  std::shared_ptr<Operation> start(CollectiveArgs args, std::chrono::nanoseconds timeout) EXCLUDES(mutex_);
  std::shared_ptr<WorkState> start(ShmP2pOp p2p) EXCLUDES(mutex_);
  // Pushes everything, and checks that the group is open and whole.
  void progress() EXCLUDES(mutex_);
  const void* group() const override { return session_.block(); }
  void push_for_another() noexcept override EXCLUDES(mutex_);
  // ArenaTable's.
  void forget_dropped() EXCLUDES(mutex_);
  Arena add_arena(std::shared_ptr<Mapping> memory, std::size_t bytes) EXCLUDES(mutex_);
  ArenaOffset find(const ConstBufferView& buffer) EXCLUDES(mutex_);
  std::byte* address(int rank, const ArenaOffset& offset) EXCLUDES(mutex_);

  // The group's destructor: says goodbye, or aborts if this rank's part of something is not done.
  void close() EXCLUDES(mutex_);
  // Aborts because the group's owner is being unwound.
  void close_unwinding() EXCLUDES(mutex_);

 private:
  friend class FreeSlot;
  friend class Operation;
  friend class ShmMessageWork;

  // Tells clang, which can't see through the virtual calls of a wait, that the caller holds the lock. Checks nothing.
  void assert_locked() const LOCKSTEP_ATTRIBUTE(assert_capability(mutex_)) {}
  // Pushes everything. Returns what the oldest collective whose part here is not done waits for.
  WaitWord push() REQUIRES(mutex_);
  // Throws if the group has been destroyed or has failed.
  void check() const REQUIRES(mutex_);
  void wait(Pollable& awaited, const Deadline& deadline) REQUIRES(mutex_) { session_.wait(awaited, deadline, *this); }
  // True if this rank's part of a collective is not done.
  bool has_collectives() const REQUIRES(mutex_) { return done_ < last_; }
  CollectiveContext context() REQUIRES(mutex_) {
    return {session_, arenas_, position_, writer_, sources_, destinations_, scratch_};
  }
  // Aborts for what this rank has done.
  void abort_for(std::string text) REQUIRES(mutex_);
  // No collective or message comes after this.
  void leave() REQUIRES(mutex_);
  // Blocks until slot `sequence` of the ring is free on every rank.
  void wait_for_slot(std::uint64_t sequence, std::chrono::nanoseconds timeout) REQUIRES(mutex_);

  Session session_;  // what moves it needs the lock
  Mutex mutex_;
  ArenaTable arenas_ GUARDED_BY(mutex_);
  ShmP2pQueue p2p_queue_ GUARDED_BY(mutex_);
  std::array<std::shared_ptr<Operation>, kRing> ring_ GUARDED_BY(mutex_);
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;  // started
  std::uint64_t done_ GUARDED_BY(mutex_) = 0;  // this rank's part is done
  std::uint64_t position_ GUARDED_BY(mutex_) = 0;
  WindowWriter writer_ GUARDED_BY(mutex_);
  std::vector<const std::byte*> sources_ GUARDED_BY(mutex_);
  std::vector<std::byte*> destinations_ GUARDED_BY(mutex_);
  Scratch scratch_ GUARDED_BY(mutex_);
  std::uint64_t free_until_ GUARDED_BY(mutex_) = kRing;  // the last sequence whose slot is known to be free
  bool closed_ GUARDED_BY(mutex_) = false;
};

// A started collective, as its Work sees it.
class Operation final : public WorkState, public Pollable {
 public:
  Operation(std::shared_ptr<ShmEngine> engine, CollectiveArgs args, std::uint64_t sequence)
      : engine_(std::move(engine)), collective_(std::move(args), sequence) {}

  bool poll() override;
  void wait(const Deadline& deadline) override;
  std::int64_t combined(std::size_t word) const override { return collective_.words()[word]; }

  WaitWord push() override;
  bool is_alone() const override;
  std::string describe() const override { return collective_.describe(); }
  std::int64_t sequence() const override { return static_cast<std::int64_t>(collective_.sequence()); }
  comm::Stragglers missing() const override;

  ShmCollective& collective() { return collective_; }

 private:
  std::shared_ptr<ShmEngine> engine_;
  ShmCollective collective_;
  bool done_ = false;  // the group's one thread's
};

// A send or recv, as its Work sees it.
class ShmMessageWork final : public WorkState, public Pollable {
 public:
  ShmMessageWork(std::shared_ptr<ShmEngine> engine, std::shared_ptr<ShmP2pOp> p2p)
      : engine_(std::move(engine)), p2p_(std::move(p2p)) {}

  bool poll() override;
  void wait(const Deadline& deadline) override;

  WaitWord push() override;
  bool is_alone() const override;
  std::string describe() const override { return p2p_->describe(); }
  comm::Stragglers missing() const override;

 private:
  std::shared_ptr<ShmEngine> engine_;
  std::shared_ptr<ShmP2pOp> p2p_;
};

}  // namespace lockstep::shm
