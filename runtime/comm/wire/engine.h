// SPDX-License-Identifier: Apache-2.0
// WireEngine runs the communication thread of one rank, and holds the pending collectives and messages that the thread
// shares with the program's thread.
//
// The program's thread puts work into a queue and waits until the work is done. The communication thread announces each
// queued collective to the other ranks at once, before the collective's turn comes. The communication thread starts
// collectives in order, runs several collectives at once, and meanwhile transfers the messages of send and recv. A
// program thread that waits for a collective may do the communication thread's work meanwhile (progress_token.h).
//
// Threads: only the thread that owns the group calls the public functions. Any thread may call abort(),
//   on_peer_failure() and last(), and the wire's threads call the methods of Listener. Only the thread that has the
//   ProgressToken uses the members that are marked as the communication thread's.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/work.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/doorbell.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/host_status_table.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/op_header_table.h"
#include "runtime/comm/wire/p2p_queue.h"
#include "runtime/comm/wire/progress_token.h"
#include "runtime/comm/wire/segment_pipeline.h"
#include "runtime/comm/wire/shutdown.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

class WireCollective;

// A ThreadMaker calls `body` on a group's communication thread, and returns a function that waits for the end of
// `body`. By default start_own_thread() makes a thread. A backend passes another ThreadMaker instead of
// start_own_thread() if only one thread may call the backend's library.
using ThreadMaker = std::function<std::function<void()>(std::function<void()> body)>;
LOCKSTEP_INTERNAL_API std::function<void()> start_own_thread(std::function<void()> body);

class WireEngine final : public Listener, public std::enable_shared_from_this<WireEngine> {
 public:
  // `host_memory` is null if the ranks of a host share no memory.
  WireEngine(std::unique_ptr<Wire> wire, const GroupContext& context, std::unique_ptr<HostMemory> host_memory = {});
  ~WireEngine();

  // Connects all ranks and starts the communication thread. While open() waits, it calls `check` repeatedly. Throws any
  // exception of Wire::open() or of `check`, and throws Timeout at the deadline. If Wire::open() fails and `check` then
  // throws PeerLost, open() throws PeerLost with the texts of both exceptions. If open() fails and the wire can't be
  // interrupted, the communication thread stays blocked in a call of the transport's library.
  void open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check = {});

  std::shared_ptr<WireCollective> start(comm::CollectiveArgs args);
  std::shared_ptr<WorkState> start(WireP2pOp p2p);
  // Returns whether the ranks of a host share memory. If the ranks of a host share memory, the collective `allocate`
  // allocates shared memory.
  bool shares_memory() const { return host_memory_ != nullptr; }
  bool sums_in_rank_order() const { return !shares_memory() || keeps_rank_order(hosts_); }
  // Allocated holds this rank's result of the collective `allocate`.
  struct Allocated {
    Arena arena;
    std::string problem;  // the reason why there is no arena
  };
  // Returns the result of the last finished `allocate`, and removes the result from the engine.
  Allocated take_allocated() EXCLUDES(mutex_);
  // Throws an exception if the group has failed or was closed.
  void check() const;
  void abort(const std::string& cause) { propose(Cause::Kind::aborted, rank_, cause); }
  // Handles `cause`, the failure of a rank that the job's membership has reported.
  void on_peer_failure(Cause cause);
  // Returns the number of the collective that was started last.
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }

  // Closes the group. Says goodbye to the other ranks, or aborts the group if this rank has not finished its part of a
  // collective or message.
  void close();
  // Closes the group by aborting it; called while an exception unwinds the stack of the group's owner.
  void close_unwinding();

  const rendezvous::Roster& roster() const { return roster_; }
  // Returns the rank's name in messages: "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  void on_frame(int peer, std::span<const std::byte> bytes) override;
  void on_lost(int peer, const std::string& how) override;
  void on_broken(const std::string& how) override;
  void on_bell() override;

 private:
  friend class WireCollective;
  friend class WireMessageWork;

  // Fails the group with a cause that this rank reports about `rank`. `rank` may be this rank, or -1 if the failure
  // concerns no single rank.
  void propose(Cause::Kind kind, int rank, std::string text);

  // The functions from run() to allocate() do the communication thread's work.
  void run();
  // Does the communication thread's work until the engine ends. REQUIRES: this thread has the token. The thread that
  // calls work() still holds the ProgressToken when work() returns or throws.
  void work();
  // Polls the wire for a while, then sleeps until the wire has news. If a thread of the program wants the
  // ProgressToken, await_news() yields the token to that thread.
  void await_news();

  // A Step says whether step() did something, found nothing to do, found work that only the communication thread may
  // do, or was the last step.
  enum class Step { something, nothing, none_for_caller, last };
  // Does all work of the communication thread that can be done now. If `is_caller` is true, step() does only work that
  // can't block.
  Step step(bool is_caller);
  void announce(WireCollective& collective);
  // Copies the announcements that have arrived in op_headers_ into arrival_table_. Call read_op_headers() before
  // reading arrival_table_.
  void read_op_headers() REQUIRES(mutex_);
  // Starts and advances collectives. Returns true if a collective was started or advanced.
  bool run_collectives(bool is_caller);
  // Runs the next collective of queue_, or adds that collective to pipeline_. Returns false if no collective can
  // start now.
  bool start_next_collective(bool is_caller);
  // Returns true if a thread that runs the collective would block until other ranks act.
  bool blocks(const comm::CollectiveArgs& args) const;
  void check_departed_ranks();
  std::optional<std::uint64_t> told_to_have_left(int rank) const;
  // Compares all ranks' announcements of `collective`, and stores the divisor, and the combined weights and notes of
  // all ranks, in `collective`.
  void agree_on(WireCollective& collective, const Arrivals& arrivals);
  void execute(const comm::CollectiveArgs& args, const Arrivals& arrivals);
  void finish(WireCollective& collective);
  void allocate(std::size_t bytes) EXCLUDES(mutex_);

  // Waits until done() returns true, the group fails or the deadline passes. During the wait, this thread advances the
  // process's groups that have no communication thread, and sleeps on the process's bell (comm/progress.h).
  enum class Outcome { done, failed, late };
  template <typename Done>
  Outcome wait_for(const Deadline& deadline, Done done) EXCLUDES(mutex_);
  // Does the communication thread's work on the program's thread until `collective` is done, or until there has been no
  // work for a while.
  void drive(const WireCollective& collective, const Deadline& deadline) EXCLUDES(mutex_);
  [[noreturn]] void time_out(const std::string& what, const comm::Stragglers& missing, const Deadline& deadline);
  // Gives up open() while the communication thread is still in Wire::open(). `why` is the failure for which open()
  // gives up.
  void give_up_opening(const Error& why, std::future<void>& outcome);
  void set_closed();
  // Returns the other ranks that have not announced `collective`, and a text that names these ranks. If all ranks have
  // announced `collective`, the result names the ranks whose data is awaited and the rank that announced last.
  comm::Stragglers missing(const WireCollective& collective) REQUIRES(mutex_);
  // Returns a text for messages that says which collective this rank was in, such as "rank 1 (...) was in all_reduce
  // 7 (...)".
  std::string where_this_rank_was() const;
  void close_as(std::optional<std::string> cause);

  const rendezvous::Roster roster_;
  const int rank_;
  const int size_;
  const Hosts hosts_;
  const std::unique_ptr<HostMemory> host_memory_;
  std::optional<OpHeaderTable> op_headers_;     // the table in the host's memory
  std::optional<SegmentCounts> counts_;         // the counts in the host's memory
  std::optional<HostStatusTable> host_status_;  // the notices in the host's memory
  DoorbellWords own_bell_{};                    // the words of bell_ if there is no op_headers_
  Doorbell bell_;
  std::unique_ptr<Wire> wire_;
  ScratchBuffer scratch_;     // used by the communication thread
  SegmentPipeline pipeline_;  // used by the communication thread
  std::function<void()> join_;
  ProgressToken token_;
  std::exception_ptr thrown_;  // the exception of a caller that had the token; guarded by the token

  mutable Mutex mutex_;
  P2pQueue p2p_queue_ GUARDED_BY(mutex_);
  ArrivalTable arrival_table_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<WireCollective>> queue_ GUARDED_BY(mutex_);  // the collectives that are not done, in order
  std::atomic<std::uint64_t> last_{0};  // the number of started collectives; written under the lock
  std::uint64_t announced_ GUARDED_BY(mutex_) = 0;
  Allocated allocated_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;  // true once the goodbye is all that must follow the queued work
  bool closed_ GUARDED_BY(mutex_) = false;
  Shutdown shutdown_;
};

// WireCollective is the WorkState of a started collective.
class WireCollective final : public WorkState {
 public:
  WireCollective(std::shared_ptr<WireEngine> engine, comm::CollectiveArgs args, std::uint64_t sequence)
      : engine_(std::move(engine)), args_(std::move(args)), sequence_(sequence) {}

  bool poll() override;
  void wait(const Deadline& deadline) override;
  std::int64_t combined(std::size_t word) const override {
    return done_.load(std::memory_order_acquire) ? words_[word] : 0;
  }

  std::string describe() const { return comm::describe(args_.record, sequence_); }

 private:
  friend class WireEngine;

  std::shared_ptr<WireEngine> engine_;
  comm::CollectiveArgs args_;
  const std::uint64_t sequence_;
  std::optional<LastArrival> last_arrival_;  // set after all ranks have arrived; guarded by the engine's lock
  comm::InlineScalars words_{};              // the combined words of all ranks, valid once done_ is true
  std::atomic<bool> done_{false};
};

}  // namespace lockstep::wire
