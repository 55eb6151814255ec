// The communication thread of one rank, and what it shares with the program's thread: the collectives and messages that
// are under way.
//
// The program's thread puts work into a queue and waits for it. The communication thread tells the others of each
// collective as soon as it is queued, so that by the time its turn comes their answers are here, runs them in order,
// and moves messages in between.
//
// Threads: the group's one thread; abort(), lose() and last() any; the listener's methods are the wire's.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/failure.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/post_office.h"
#include "runtime/comm/wire/wire.h"
#include "runtime/comm/work.h"
#include "runtime/rendezvous/roster.h"

namespace lockstep::wire {

class Collective;

// Runs a group's communication thread: calls `body` on a thread, and returns what waits for its end. By default a new
// thread; a library that has to be called from one thread alone brings its own.
using ThreadMaker = std::function<std::function<void()>(std::function<void()> body)>;
std::function<void()> start_own_thread(std::function<void()> body);

class Engine final : public Listener, public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::unique_ptr<Wire> wire, rendezvous::Roster roster, int rank, std::shared_ptr<store::Store> store);
  ~Engine();

  // Connects all ranks and starts. Throws what Wire::open() throws. Where that may wait past the deadline
  // (Wire::opening()), throws Timeout then, or what `check` throws in the meantime; the thread is left to the library.
  void open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check = {});

  std::shared_ptr<Collective> start(comm::Task task);
  std::shared_ptr<WorkState> start(Parcel parcel);
  // Throws if the group has failed or was closed.
  void check() const;
  void abort(const std::string& cause) { failure_.propose(Cause::peer_lost, cause); }
  // The job's membership says so. Any thread.
  void lose(int rank, const std::string& how);
  // Number of the collective that was started last. Any thread.
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }

  // Says goodbye; or aborts, if this rank's part of something is not done.
  void close();
  // Aborts because the group's owner is being unwound.
  void close_unwinding();

  const rendezvous::Roster& roster() const { return roster_; }
  // "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  void on_frame(int peer, std::span<const std::byte> bytes) override;
  void on_lost(int peer, const std::string& how) override;
  void on_broken(const std::string& how) override;

 private:
  friend class Collective;
  friend class Message;

  // A rank's word that it has come to a collective.
  struct Announcement {
    comm::OpRecord record;
    std::vector<std::byte> payload;
  };
  // By rank.
  using Arrivals = std::vector<std::optional<Announcement>>;

  // The communication thread's.
  void run();
  // A transfer broke; somebody may be about to say why.
  void wait_for_a_cause(const std::string& how);
  // False at the end.
  bool step();
  void announce(Collective& collective);
  bool run_collectives();
  void check_those_who_left();
  void execute(Collective& collective, const Arrivals& arrivals);
  void acknowledge();
  void say_goodbye();
  void tell_of_failure();

  Arrivals& arrivals_of(std::uint64_t sequence) REQUIRES(mutex_);
  // Waits until done() holds or the group fails. False if the deadline passed.
  template <typename Done>
  bool wait_for(const Deadline& deadline, Done done) REQUIRES(mutex_);
  // Throws the cause, once the communication thread has let go of the memory of all works: it is the caller's then.
  [[noreturn]] void throw_failure() const REQUIRES(mutex_);
  [[noreturn]] void time_out(const std::string& what, const std::string& missing, const Deadline& deadline);
  std::string missing(const Collective& collective) const REQUIRES(mutex_);
  // "rank 1 (...) was in all_reduce 7 (...)".
  std::string where_this_rank_was() const REQUIRES(mutex_);
  void close_as(std::optional<std::string> cause);

  const rendezvous::Roster roster_;
  const int rank_;
  const int size_;
  std::unique_ptr<Wire> wire_;
  Failure failure_;
  Spare spare_;  // the communication thread's
  std::function<void()> join_;

  mutable Mutex mutex_;
  mutable Condition changed_;
  PostOffice post_office_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Collective>> queue_ GUARDED_BY(mutex_);  // not done, in order
  std::atomic<std::uint64_t> last_{0};                                // started; written under the lock
  std::uint64_t announced_ GUARDED_BY(mutex_) = 0;
  std::uint64_t done_ GUARDED_BY(mutex_) = 0;
  std::deque<Arrivals> arrivals_ GUARDED_BY(mutex_);     // of collectives done_ + 1 and later
  std::vector<std::uint64_t> heard_ GUARDED_BY(mutex_);  // by rank: its last collective that it has told of
  std::vector<std::optional<std::uint64_t>> left_after_ GUARDED_BY(mutex_);  // by rank, that said goodbye
  std::vector<bool> seen_ GUARDED_BY(mutex_);  // who needs to be told nothing more: it has seen our goodbye, or is gone
  std::vector<int> to_acknowledge_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;
  bool let_go_ GUARDED_BY(mutex_) = false;  // the communication thread touches no memory of a work any more
  bool closed_ GUARDED_BY(mutex_) = false;
};

// A started collective, as its Work sees it.
class Collective final : public WorkState {
 public:
  Collective(std::shared_ptr<Engine> engine, comm::Task task, std::uint64_t sequence)
      : engine_(std::move(engine)), task_(std::move(task)), sequence_(sequence) {}

  bool poll() override;
  void wait(const Deadline& deadline) override;
  std::int64_t total_weight() const override { return done_.load(std::memory_order_acquire) ? total_weight_ : 0; }

  std::string describe() const { return comm::describe(task_.record, sequence_); }

 private:
  friend class Engine;

  std::shared_ptr<Engine> engine_;
  comm::Task task_;
  const std::uint64_t sequence_;
  std::int64_t total_weight_ = 0;  // known once it is done
  std::atomic<bool> done_{false};
};

}  // namespace lockstep::wire
