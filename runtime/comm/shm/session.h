// SPDX-License-Identifier: Apache-2.0
// One rank's handle on the control block: it waits for peers, wakes them, and fails the group on all ranks.
//
// Threads: the group's one thread, except abort() and on_peer_failure().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/cause.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/comm/shm/control.h"
#include "runtime/comm/shm/memory.h"

namespace lockstep::shm {

// By rank; ranks that are threads of one process have one.
using Bells = std::vector<std::shared_ptr<comm::ProcessDoorbell>>;

// A word of another rank that still has this value, and for whose change a rank waits. No word: nothing, it is done.
struct WaitWord {
  const std::atomic<std::uint64_t>* word = nullptr;
  std::uint64_t value = 0;

  bool done() const { return word == nullptr; }
};

// Something that a rank can wait for.
class Pollable {
 public:
  // Does what can be done now, and returns what it waits for then.
  virtual WaitWord push() = 0;
  // The operation, for messages, and its number if it is a collective, else -1.
  virtual std::string describe() const = 0;
  virtual std::int64_t sequence() const { return -1; }
  // Who holds it up, and the sentence that says so: has not arrived, is not through, or is the peer of a message.
  virtual comm::Stragglers missing() const = 0;
  // True if nothing else that push() could further is under way in the group: then no other word of it is worth waking
  // up for. False is always right; it costs wake-ups.
  virtual bool is_alone() const = 0;
  // How long to sleep at most before pushing again.
  virtual std::chrono::milliseconds patience() const { return comm::ProgressEngine::kSlice; }

 protected:
  ~Pollable() = default;
};

class Session {
 public:
  // `control` maps the formatted block; this rank's lock is held (liveness.h). `bells` are those of the ranks'
  // processes, by rank. `on_throw` gets the first cause before each throw of it, on the thread that throws.
  Session(std::shared_ptr<Mapping> control, Bells bells, rendezvous::Roster roster, int rank,
          std::function<void(const Cause&)> on_throw = {});

  int rank() const { return rank_; }
  int size() const { return size_; }
  const ControlBlock& control() const { return control_; }
  // Where the group's control block is in this process: one place for all ranks that are its threads.
  const void* block() const { return mapping_->data(); }
  RankWords& own() const { return control_.words(rank_); }
  const RankWords& words(int rank) const { return control_.words(rank); }
  const rendezvous::Roster& roster() const { return roster_; }
  // "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  using Word = std::atomic<std::uint64_t> RankWords::*;
  // Sets a word of this rank, after all that it stands for, and wakes who sleeps on it.
  void post(Word word, std::uint64_t value);
  // The same for a word on which a rank hardly ever sleeps: costs less, and may miss one that falls asleep just now.
  void post_quietly(Word word, std::uint64_t value);
  // Tells the others of a collective whose record is in its announcement.
  void announce(std::uint64_t sequence);
  // Grows with each of these calls.
  std::uint64_t moves() const { return moves_; }

  // Throws the first cause if the group has failed.
  void check() const {
    if (control_.header().first_failure.load(std::memory_order_acquire) != 0) throw_first_cause();
  }
  // Fails the group on every rank with what this one says of `rank` (-1: no single one), then throws the first cause,
  // which may be another's.
  [[noreturn]] void fail(Cause::Kind kind, int rank, std::string text, std::int64_t sequence = -1);
  // Fails the group; any thread. False if it had failed before.
  bool abort(const Cause& cause);
  // A cause about `rank`, which may be this rank, as this rank reports it.
  Cause cause_of(Cause::Kind kind, int rank, std::string text, std::int64_t sequence = -1) const {
    return comm::cause_about(roster_, kind, rank, rank_, std::move(text), sequence);
  }
  bool failed() const { return control_.header().first_failure.load(std::memory_order_acquire) != 0; }

  // The job's membership reports `cause`: fails the group with it. Any thread. A rank that has left fails nobody; a
  // process that has ended is named by the waiter's next check_peers_alive(), which knows in which operation.
  void on_peer_failure(Cause cause);

  // Pushes until `awaited` is done: spins for a few microseconds where every rank has a core, then sleeps, and pushes
  // the process's other groups before that. `group` is the one that `awaited` pushes. When the deadline passes, the
  // group fails with a Timeout that says who is missing; when a process dies, with PeerLost.
  void wait(Pollable& awaited, const Deadline& deadline, const comm::CallerDrivenGroup& group);

  // The last collective of `rank`, which has said goodbye.
  std::uint64_t left_after(int rank) const { return words(rank).left_after.load(std::memory_order_acquire) - 1; }
  bool has_left(int rank) const { return words(rank).left_after.load(std::memory_order_acquire) != 0; }

  // Throws PeerLost, on all ranks, if a rank's process has ended without a goodbye. `what` this rank is in.
  void check_peers_alive(std::string_view what);

  // Says goodbye: nothing will come after collective `last`.
  void leave(std::uint64_t last);

 private:
  // Spins until `awaited` is done, or for kSpin after it last got on. True if done.
  bool spin(Pollable& awaited);
  // Sleeps until what blocks it changes, at most its patience. True if `awaited` was found done on the way.
  bool sleep_until_changed(Pollable& awaited, const Deadline& deadline, const comm::CallerDrivenGroup& group);
  // Wakes the peers that sleep on `word`, of this rank, or on their process's bell.
  void wake(const std::atomic<std::uint64_t>& word) const;
  // Rings the peers' bells. True if one of their processes has a thread asleep on a word.
  bool ring() const;
  // Wakes who sleeps on any word of `rank`.
  void wake_all(int rank) const;

  [[noreturn]] void throw_first_cause() const;

  std::shared_ptr<Mapping> mapping_;
  ControlBlock control_;
  const Bells bells_;
  std::vector<comm::ProcessDoorbell*> peers_;  // the bells of the other ranks' processes, each once
  rendezvous::Roster roster_;
  int rank_;
  int size_;
  bool may_spin_;
  std::function<void(const Cause&)> on_throw_;
  std::uint64_t moves_ = 0;  // words that this rank has set
  Mutex abort_mutex_;
  bool aborted_ GUARDED_BY(abort_mutex_) = false;
};

}  // namespace lockstep::shm
