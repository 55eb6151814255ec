// The owner thread of one rank's NCCL communicator, and what it shares with the program's thread: the collectives that
// are under way.
//
// The program's thread marks its compute stream with an event and queues the collective. The owner thread makes every
// NCCL call, in order: it lets the communication stream wait for the event, launches, and puts another event behind.
// Who wants the result waits for that one, in a stream or on the host. NCCL knows no deadline and does not see every
// death: the engine watches the events, NCCL's own errors and the ranks' log, and aborts the communicator where one of
// them, the job's membership or the program says so.
//
// Messages between two ranks are launched among the collectives, in the program's order: message.h.
//
// Failure: once there is a cause, an undertaker thread takes the communicator from the owner, aborts it in a helper
// thread, and ends the process (base/exit_code.h) if that has not returned 5 s after the cause: a kernel that never
// ends can't be ended otherwise, and the process is lost to its job anyway. An abort comes back behind what the program
// computes for the collectives that were launched, so these seconds begin when that has ended (compute_ahead.h), for
// which it has the group's timeout.
//
// The end in order: all say goodbye; the device does what it still has to do, the program's kernels too, since NCCL's
// own end waits for them without a deadline; then NCCL ends. Each rank gives the others the group's timeout for that.
//
// Threads: the group's one thread; abort(), lose() and last() any.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/failure/failure.h"
#include "runtime/comm/failure/patience.h"
#include "runtime/comm/nccl/collective.h"
#include "runtime/comm/nccl/control.h"
#include "runtime/comm/nccl/entry.h"
#include "runtime/comm/nccl/flight_record.h"
#include "runtime/comm/nccl/knobs.h"
#include "runtime/comm/nccl/message.h"

namespace lockstep::nccl {

class Engine final : public std::enable_shared_from_this<Engine> {
 public:
  Engine(const Api& api, DeviceRuntime& runtime, GroupContext context, Knobs knobs);
  ~Engine();

  // Makes the communicator, with all ranks. Throws BackendUnavailable, Timeout, PeerLost.
  void open(const Deadline& deadline);

  // `compute`: the stream that a collective on device memory comes behind.
  std::shared_ptr<WorkState> start(comm::Task task, StreamView compute);
  std::shared_ptr<WorkState> start(std::shared_ptr<Message> message, StreamView compute);
  // Runs `body` on the owner thread, between collectives, and waits for it. Throws what it throws; Timeout after the
  // group's timeout, which fails the group: `body` may still run then, so it refers to nothing of the caller's. `what`
  // names it: "an allocation".
  void on_owner_thread(const char* what, std::function<void(const Lane&)> body);

  // What the owner thread does before it ends the communicator in order; not if it is aborted.
  void at_the_end(std::function<void(const Lane&)> body);

  // Throws if the group has failed or was closed.
  void check() const;
  // Notices what the device has finished.
  void retire();
  void abort(const std::string& cause) { propose(Cause::Kind::aborted, rank_, cause); }
  void lose(Cause cause);
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }

  // Says goodbye; or aborts, if this rank's part of something is not done.
  void close();
  // Aborts because the group's owner is being unwound.
  void close_unwinding();
  // An abort has not returned, and the process goes on: the device may use the group's memory for ever.
  bool device_is_stuck() const { return device_is_stuck_.load(std::memory_order_acquire); }

  const GroupContext& context() const { return context_; }
  const Api& api() const { return api_; }
  DeviceRuntime& runtime() const { return runtime_; }
  // "rank 2 (host node7, pid 4711)".
  std::string who(int rank) const { return context_.roster[static_cast<std::size_t>(rank)].describe(); }
  std::string own_name() const { return who(rank_); }

 private:
  friend class Ticket;

  // What this rank has to say of `rank`, which may be itself, or -1: no single one; and the group failed with it.
  Cause cause_of(Cause::Kind kind, int rank, std::string text) const;
  void propose(Cause::Kind kind, int rank, std::string text) {
    failure_.propose(cause_of(kind, rank, std::move(text)));
  }
  [[noreturn]] void fail(Cause::Kind kind, int rank, std::string text) {
    failure_.fail(cause_of(kind, rank, std::move(text)));
  }

  // Something that the owner thread does for another.
  struct Errand {
    std::function<void(const Lane&)> body;
    std::exception_ptr error;
    bool done = false;
  };
  // What a rank says of itself when another asks.
  struct Position {
    std::uint64_t last = 0;
    std::uint64_t asked = 0;
    std::optional<comm::OpRecord> record;  // of the collective that was asked for
  };

  // What is called and not done, and that no stream waits for.
  struct UnderWay {
    std::size_t collectives = 0;
    std::size_t messages = 0;
  };

  // engine.cc: the program's thread.
  void wait_for(Item& item, const Deadline& deadline);
  void wait_on(Item& item, StreamView stream, const Deadline& deadline);
  bool poll(Item& item);
  [[noreturn]] void throw_failure() const;
  // Takes the memory that it needs, and marks the compute stream that it comes behind, if it does.
  void prepare(Item& item, bool follows, StreamView compute);
  void queue(std::shared_ptr<Item> item) REQUIRES(mutex_);
  UnderWay under_way();
  std::string where_this_rank_was() const REQUIRES(mutex_);
  // Something has changed that the owner thread looks at, or another waits for.
  void notify() REQUIRES(mutex_) {
    ++changes_;
    changed_.notify_all();
  }

  // engine_owner.cc: the owner thread.
  void run(const Deadline& deadline);
  void make_communicator(const Deadline& deadline);
  void wait_until_all_are_up(const Deadline& deadline);
  // False at the end.
  bool step();
  bool run_errands();
  bool launch_next();
  // In checked mode: all ranks have come to it, with the same operation.
  bool all_have_come(const Item& collective);
  // NCCL has launched the item: what comes behind it.
  void launched();
  bool is_closing() const {
    MutexLock lock(mutex_);
    return closing_;
  }
  void watch();
  void watch_front();
  void check_those_who_left();
  void fail_for(const CallFailed& error);
  // Until somebody notifies, or this time has passed.
  void pause(std::chrono::nanoseconds at_most) const;
  // True once NCCL is through with what was called last. Throws what went wrong since.
  bool is_through();
  // Waits until then. `remedy` goes into the message of a timeout.
  void settle(const Deadline& deadline, const char* what, const char* remedy);
  Lane lane() const;

  // engine_log.cc: what the ranks tell each other.
  void on_entry(const std::string& text);
  void answer(const Entry& question);
  bool all_have_answered() const REQUIRES(mutex_);
  // Of collective `sequence`: who has not come, asked of all; a Mismatch if one came to another.
  Cause what_holds_up(const Item& item, const Deadline& deadline);
  [[noreturn]] void time_out(const Item& item, const Deadline& deadline);

  // engine_end.cc: how the group ends.
  void on_cause();
  void undertake();
  // Aborts what there is, in a thread of its own. An abort that has not come back when the patience is over is the
  // watchdog's. Then waits for the device, for a while.
  void bury(comm::Patience patience);
  // Behind what the program computes for collectives and messages that are launched.
  std::vector<std::shared_ptr<void>> ready_events();
  void abort_communicator();
  void end_the_process(const char* what);
  void leave();
  // What this rank says when it leaves.
  Entry goodbye() const;
  bool wait_for_goodbyes();
  void wait_for_the_device();
  // The group is to go, and what the program has put on the device has not ended.
  [[noreturn]] void fail_for_what_is_computed(const Deadline& limit);
  void destroy();
  void close_as(std::optional<std::string> cause);
  void ask_who_is_lost();
  void join_owner();
  void join_undertaker();

  const Api& api_;
  DeviceRuntime& runtime_;
  const GroupContext context_;
  const Knobs knobs_;
  const int rank_;
  const int size_;
  comm::PatientStore patient_store_;
  comm::Failure failure_;
  FlightRecord flight_record_;

  // The owner thread's; then the undertaker's.
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<void> stream_;
  std::shared_ptr<Item> launching_;  // NCCL is about to launch it
  std::weak_ptr<Item> front_;        // what the device is in, and until when; no address, which a later one may have
  bool front_computed_ = false;
  std::optional<comm::Patience> front_patience_;
  std::optional<Deadline> front_limit_;           // the same, as an error says it
  std::optional<comm::Patience> error_patience_;  // set: NCCL says that something is wrong
  std::shared_ptr<void> world_size_;              // on the device
  Deadline next_look_ = Deadline::after({});
  int looks_at_nccl_ = 0;  // in a row

  std::thread owner_;
  std::thread undertaker_ GUARDED_BY(mutex_);

  mutable Mutex retire_mutex_;                                             // before mutex_, where both are held
  std::deque<std::shared_ptr<Item>> in_flight_ GUARDED_BY(retire_mutex_);  // launched, not done, in order

  mutable Mutex mutex_;
  mutable Condition changed_;
  std::uint64_t changes_ GUARDED_BY(mutex_) = 0;  // who looks without the lock sees by it what came meanwhile
  std::deque<std::shared_ptr<Item>> queue_ GUARDED_BY(mutex_);  // not launched, in order
  std::shared_ptr<Item> current_ GUARDED_BY(mutex_);            // launched last
  std::map<int, MessageCounts> messages_ GUARDED_BY(mutex_);    // started, by the other rank
  std::deque<std::shared_ptr<Errand>> errands_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> last_{0};  // started; written under the lock
  std::map<std::uint64_t, std::vector<std::optional<comm::OpRecord>>> arrivals_ GUARDED_BY(mutex_);  // checked mode
  std::vector<std::optional<Position>> positions_ GUARDED_BY(mutex_);
  std::vector<std::optional<Goodbye>> left_after_ GUARDED_BY(mutex_);
  std::function<void(const Lane&)> at_the_end_ GUARDED_BY(mutex_);
  bool somebody_aborted_ GUARDED_BY(mutex_) = false;
  bool answered_ GUARDED_BY(mutex_) = false;
  bool told_by_another_ GUARDED_BY(mutex_) = false;
  bool open_ GUARDED_BY(mutex_) = false;
  std::exception_ptr open_error_ GUARDED_BY(mutex_);
  bool parked_ GUARDED_BY(mutex_) = true;   // the owner thread makes no more calls
  bool let_go_ GUARDED_BY(mutex_) = false;  // the device touches no memory of a work any more
  bool undertaker_called_ GUARDED_BY(mutex_) = false;
  // The owner thread does at its end what the undertaker would: there was no thread for that, or nobody waits any more.
  bool owner_undertakes_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> device_is_stuck_{false};
  mutable std::atomic<bool> thrown_{false};  // the program knows of the failure
  bool closing_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;

  Control control_;  // last: its reader uses all of the above
};

// A started collective or message, as its Work sees it.
class Ticket final : public WorkState {
 public:
  Ticket(std::shared_ptr<Engine> engine, std::shared_ptr<Item> item)
      : engine_(std::move(engine)), item_(std::move(item)) {}

  bool poll() override { return engine_->poll(*item_); }
  void wait(const Deadline& deadline) override { engine_->wait_for(*item_, deadline); }
  void wait_on(StreamView stream, const Deadline& deadline) override { engine_->wait_on(*item_, stream, deadline); }
  void* end_mark() const override {
    return item_->launched.load(std::memory_order_acquire) ? item_->finished.get() : nullptr;
  }
  std::int64_t combined(std::size_t word) const override {
    return item_->done.load(std::memory_order_acquire) ? item_->combined(word) : 0;
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Item> item_;
};

}  // namespace lockstep::nccl
