// SPDX-License-Identifier: Apache-2.0
// The communication thread of one rank, and the pending collectives and messages that it shares with the program's
// thread.
//
// The program's thread puts work into a queue and waits for it. The communication thread announces each collective to
// the other ranks as soon as it is queued, so their answers are here by the time its turn comes; runs collectives in
// order, those of the pipeline several at once; and moves messages in between. A caller that waits for a collective
// does the same in its place, if it may (progress_token.h).
//
// Threads: the group's one thread; any thread for abort(), on_peer_failure() and last(); the wire's for the listener's
//   methods. Members of the communication thread belong to the thread that has the token.
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

// Runs a group's communication thread: calls `body` on a thread, and returns a function that waits for its end. By
// default it makes a thread; a library that only one thread may call brings its own.
using ThreadMaker = std::function<std::function<void()>(std::function<void()> body)>;
LOCKSTEP_INTERNAL_API std::function<void()> start_own_thread(std::function<void()> body);

class WireEngine final : public Listener, public std::enable_shared_from_this<WireEngine> {
 public:
  // `host_memory` is null if the ranks of a host share no memory.
  WireEngine(std::unique_ptr<Wire> wire, const GroupContext& context, std::unique_ptr<HostMemory> host_memory = {});
  ~WireEngine();

  // Connects all ranks and starts. Throws what Wire::open() throws, Timeout at the deadline, or what `check` throws
  // meanwhile, with both texts if both throw. If the wire can't be interrupted, the thread is left to the library.
  void open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check = {});

  std::shared_ptr<WireCollective> start(comm::CollectiveArgs args);
  std::shared_ptr<WorkState> start(WireP2pOp p2p);
  // Whether the ranks of a host share memory: the collective `allocate` then allocates it.
  bool shares_memory() const { return host_memory_ != nullptr; }
  bool sums_in_rank_order() const { return !shares_memory() || keeps_rank_order(hosts_); }
  // The result of the allocate that was waited for last. Called once.
  struct Allocated {
    Arena arena;
    std::string problem;  // the reason why there is none
  };
  Allocated take_allocated() EXCLUDES(mutex_);
  // Throws if the group has failed or was closed.
  void check() const;
  void abort(const std::string& cause) { propose(Cause::Kind::aborted, rank_, cause); }
  // Takes a failure that the job's membership reports. Any thread.
  void on_peer_failure(Cause cause);
  // The number of the collective that was started last. Any thread.
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }

  // Says goodbye; or aborts, if this rank has not finished its part of some work.
  void close();
  // Aborts because the group's owner is being unwound.
  void close_unwinding();

  const rendezvous::Roster& roster() const { return roster_; }
  // The rank in messages: "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  void on_frame(int peer, std::span<const std::byte> bytes) override;
  void on_lost(int peer, const std::string& how) override;
  void on_broken(const std::string& how) override;
  void on_bell() override;

 private:
  friend class WireCollective;
  friend class WireMessageWork;

  // Fails the group with this rank's report on `rank`, which may be this rank, or -1: no single rank.
  void propose(Cause::Kind kind, int rank, std::string text);

  // Functions of the communication thread.
  void run();
  // Works until the end. The thread has the token when it enters, returns or throws.
  void work();
  // Polls for a while, then sleeps; yields the token to a caller that wants it.
  void await_news();

  // The outcome of a step: it did something; there was nothing to do; the rest is for the communication thread; it was
  // the last.
  enum class Step { something, nothing, none_for_caller, last };
  // Does all work that can be done now. A caller does nothing that may block.
  Step step(bool is_caller);
  void announce(WireCollective& collective);
  // Notes the announcements that have arrived in the table. Call it before reading which rank has announced what.
  void read_op_headers() REQUIRES(mutex_);
  // True if there was anything to do.
  bool run_collectives(bool is_caller);
  // Runs the next collective, or has the pipeline begin it.
  bool start_next_collective(bool is_caller);
  // Whether running it waits for other ranks.
  bool blocks(const comm::CollectiveArgs& args) const;
  void check_departed_ranks();
  std::optional<std::uint64_t> told_to_have_left(int rank) const;
  // Compares the ranks' announcements, and notes the result for the collective's arguments.
  void agree_on(WireCollective& collective, const Arrivals& arrivals);
  void execute(const comm::CollectiveArgs& args, const Arrivals& arrivals);
  void finish(WireCollective& collective);
  void allocate(std::size_t bytes) EXCLUDES(mutex_);

  // Waits until done() holds, the group fails or the deadline passes. It advances the process's groups that only
  // callers advance, and sleeps on the process's bell (comm/progress.h).
  enum class Outcome { done, failed, late };
  template <typename Done>
  Outcome wait_for(const Deadline& deadline, Done done) EXCLUDES(mutex_);
  // Advances the group in the communication thread's place until that collective is done, or until there is nothing to
  // do for a while.
  void drive(const WireCollective& collective, const Deadline& deadline) EXCLUDES(mutex_);
  [[noreturn]] void time_out(const std::string& what, const comm::Stragglers& missing, const Deadline& deadline);
  // Gives up while the library is in Wire::open(); `why` is the reason why nobody waits for it any longer.
  void give_up_opening(const Error& why, std::future<void>& outcome);
  void set_closed();
  // The ranks, except this one, that have not arrived; and the rank that arrived last, if all have.
  comm::Stragglers missing(const WireCollective& collective) REQUIRES(mutex_);
  // A text for messages: "rank 1 (...) was in all_reduce 7 (...)".
  std::string where_this_rank_was() const;
  void close_as(std::optional<std::string> cause);

  const rendezvous::Roster roster_;
  const int rank_;
  const int size_;
  const Hosts hosts_;
  const std::unique_ptr<HostMemory> host_memory_;
  std::optional<OpHeaderTable> op_headers_;     // in the host's memory
  std::optional<SegmentCounts> counts_;         // in the host's memory
  std::optional<HostStatusTable> host_status_;  // in the host's memory
  DoorbellWords own_bell_{};                    // used without a table
  Doorbell bell_;
  std::unique_ptr<Wire> wire_;
  ScratchBuffer scratch_;     // the communication thread's
  SegmentPipeline pipeline_;  // the communication thread's
  std::function<void()> join_;
  ProgressToken token_;
  std::exception_ptr thrown_;  // by a caller that had the token; guarded by the token

  mutable Mutex mutex_;
  P2pQueue p2p_queue_ GUARDED_BY(mutex_);
  ArrivalTable arrival_table_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<WireCollective>> queue_ GUARDED_BY(mutex_);  // not done, in order
  std::atomic<std::uint64_t> last_{0};                                    // started; written under the lock
  std::uint64_t announced_ GUARDED_BY(mutex_) = 0;
  Allocated allocated_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;  // only the goodbye is left to do
  bool closed_ GUARDED_BY(mutex_) = false;
  Shutdown shutdown_;
};

// A started collective, as its Work sees it.
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
  std::optional<LastArrival> last_arrival_;  // set after all have arrived; under the engine's lock
  comm::InlineScalars words_{};              // of all ranks, set when it is done
  std::atomic<bool> done_{false};
};

}  // namespace lockstep::wire
