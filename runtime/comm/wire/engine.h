// SPDX-License-Identifier: Apache-2.0
// WireEngine runs the communication thread of one rank, and holds the pending collectives and messages that the thread
// shares with the program's thread.
//
// The program's thread puts work into a queue and waits until the work is done. The communication thread announces each
// queued collective to the other ranks at once, so that their announcements can arrive before the collective's turn
// comes. The communication thread runs collectives in order, several at once in the pipeline, and moves messages in
// between. A caller that waits for a collective may do the work of the communication thread (progress_token.h).
//
// Threads: the group's one thread calls the public functions. Any thread may call abort(), on_peer_failure() and
//   last(), and the wire's threads call the listener's methods. Members of the communication thread belong to the
//   thread that has the token.
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
// `body`. By default start_own_thread() makes a thread. A library that only one thread may call needs another maker.
using ThreadMaker = std::function<std::function<void()>(std::function<void()> body)>;
LOCKSTEP_INTERNAL_API std::function<void()> start_own_thread(std::function<void()> body);

class WireEngine final : public Listener, public std::enable_shared_from_this<WireEngine> {
 public:
  // `host_memory` is null if the ranks of a host share no memory.
  WireEngine(std::unique_ptr<Wire> wire, const GroupContext& context, std::unique_ptr<HostMemory> host_memory = {});
  ~WireEngine();

  // Connects all ranks and starts the communication thread. Throws the exceptions of Wire::open(), Timeout at the
  // deadline, or an exception that `check` throws meanwhile. If Wire::open() and `check` both throw, the message has
  // both texts. If the wire can't be interrupted, the thread is left to the library.
  void open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check = {});

  std::shared_ptr<WireCollective> start(comm::CollectiveArgs args);
  std::shared_ptr<WorkState> start(WireP2pOp p2p);
  // Returns whether the ranks of a host share memory. If they do, the collective `allocate` allocates shared memory.
  bool shares_memory() const { return host_memory_ != nullptr; }
  bool sums_in_rank_order() const { return !shares_memory() || keeps_rank_order(hosts_); }
  // Allocated is the result of the collective `allocate`.
  struct Allocated {
    Arena arena;
    std::string problem;  // the reason why there is no arena
  };
  // Removes and returns the result of the `allocate` that was waited for last.
  Allocated take_allocated() EXCLUDES(mutex_);
  // Throws if the group has failed or was closed.
  void check() const;
  void abort(const std::string& cause) { propose(Cause::Kind::aborted, rank_, cause); }
  // Handles a failure that the job's membership reports.
  void on_peer_failure(Cause cause);
  // Returns the number of the collective that was started last.
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }

  // Says goodbye to the other ranks, or aborts if this rank has not finished its part of some work.
  void close();
  // Aborts, because an exception unwinds the group's owner.
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

  // Fails the group with this rank's report on `rank`. `rank` may be this rank, or -1 for no single rank.
  void propose(Cause::Kind kind, int rank, std::string text);

  // The functions below belong to the communication thread.
  void run();
  // Works until the engine ends. The thread has the token when it enters work(), and when work() returns or throws.
  void work();
  // Polls for a while, then sleeps. Yields the token to a caller that wants the token.
  void await_news();

  // The outcome of a step: the step did something, found nothing to do, found work that only the communication thread
  // may do, or was the last step.
  enum class Step { something, nothing, none_for_caller, last };
  // Does all work that can be done now. If `is_caller`, does only work that can't block.
  Step step(bool is_caller);
  void announce(WireCollective& collective);
  // Copies the announcements that have arrived in op_headers_ into arrival_table_. Call read_op_headers() before
  // reading arrival_table_.
  void read_op_headers() REQUIRES(mutex_);
  // Starts and advances collectives. Returns true if there was anything to do.
  bool run_collectives(bool is_caller);
  // Runs the next collective, or adds the collective to the pipeline. Returns false if no collective can start now.
  bool start_next_collective(bool is_caller);
  // Returns whether running the collective waits for other ranks.
  bool blocks(const comm::CollectiveArgs& args) const;
  void check_departed_ranks();
  std::optional<std::uint64_t> told_to_have_left(int rank) const;
  // Compares the ranks' announcements, and sets the collective's divisor and combined words.
  void agree_on(WireCollective& collective, const Arrivals& arrivals);
  void execute(const comm::CollectiveArgs& args, const Arrivals& arrivals);
  void finish(WireCollective& collective);
  void allocate(std::size_t bytes) EXCLUDES(mutex_);

  // Waits until done() returns true, the group fails or the deadline passes. wait_for() advances the process's groups
  // that only callers advance, and sleeps on the process's bell (comm/progress.h).
  enum class Outcome { done, failed, late };
  template <typename Done>
  Outcome wait_for(const Deadline& deadline, Done done) EXCLUDES(mutex_);
  // Advances the group in place of the communication thread until `collective` is done, or until there is nothing to do
  // for a while.
  void drive(const WireCollective& collective, const Deadline& deadline) EXCLUDES(mutex_);
  [[noreturn]] void time_out(const std::string& what, const comm::Stragglers& missing, const Deadline& deadline);
  // Gives up the engine while the library is in Wire::open(). `why` is the reason for giving up.
  void give_up_opening(const Error& why, std::future<void>& outcome);
  void set_closed();
  // Returns the other ranks that have not arrived. If all ranks have arrived, names the ranks whose data is awaited,
  // and the rank that arrived last.
  comm::Stragglers missing(const WireCollective& collective) REQUIRES(mutex_);
  // Returns a text for messages: "rank 1 (...) was in all_reduce 7 (...)".
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
