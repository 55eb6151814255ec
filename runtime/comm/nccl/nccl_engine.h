// SPDX-License-Identifier: Apache-2.0
// One rank's part in a group over NCCL: the parts that launch, watch and end its calls, and the program's way to them.
//
//   program's thread --start()--> CallList, LaunchThread --> NCCL --> device
//                                     ^ Watchdog: what the device has finished, timeouts, NCCL's errors, who left
//                    --close()--> Shutdown: goodbye and the orderly end, or the abort
//
// The program's thread marks its compute stream with an event and queues the call. The device's launch thread
// (launch_thread.h) lets the communication stream wait for the event, launches, and puts another event behind. Who
// wants the result waits for that one, in a stream or on the host. NCCL knows no deadline and does not see every death:
// the watchdog looks at the events, NCCL's own errors and the ranks' words, and the group fails with the first cause
// that one of them, the job's membership or the program brings.
//
// Messages between two ranks are launched among the collectives, in the program's order: message.h.
//
// Threads: the group's one thread; abort(), on_peer_failure() and last() any. A wait on the host pushes the process's
// groups that only callers move (comm/progress.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/work.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/nccl/group_core.h"
#include "runtime/comm/nccl/group_scope.h"
#include "runtime/comm/nccl/launch_thread.h"
#include "runtime/comm/nccl/shutdown.h"
#include "runtime/comm/nccl/watchdog.h"

namespace lockstep::nccl {

class NcclEngine final : public LaunchClient, public std::enable_shared_from_this<NcclEngine> {
 public:
  NcclEngine(const Api& api, DeviceRuntime& runtime, GroupContext context, Options options);
  ~NcclEngine();

  // Makes the communicator, with all ranks. Throws BackendUnavailable, Timeout, PeerLost.
  void open(const Deadline& deadline);

  // `compute`: the stream that a call on device memory comes behind.
  std::shared_ptr<WorkState> start(comm::CollectiveArgs args, StreamView compute);
  std::shared_ptr<WorkState> start(const std::shared_ptr<NcclMessage>& message, StreamView compute);
  // Runs `body`, which calls NCCL, on a thread of its own, under the communicator's lock, and waits for it. A call of
  // this group that is being launched may be between two of its steps: whoever needs none waits for them before. Throws
  // what it throws; Timeout after the group's timeout, which fails the group: `body` may still run then, so it refers
  // to nothing of the caller's. `what` names it: "an allocation".
  void call_nccl(const char* what, std::function<void(const LaunchContext&)> body);
  // Called before the communicator ends in order; not if it is aborted.
  void at_the_end(std::function<void(const LaunchContext&)> body) { shutdown_.at_the_end(std::move(body)); }

  // Throws if the group has failed or was closed.
  void check() const;
  // Notices what the device has finished.
  void retire() { watchdog_.retire(); }
  void abort(const std::string& cause) { core_.propose(Cause::Kind::aborted, core_.rank, cause); }
  void on_peer_failure(Cause cause);
  std::uint64_t last() const { return core_.calls.last(); }

  // Says goodbye; or aborts, if this rank's part of something is not done.
  void close();
  // Aborts because the group's owner is being unwound.
  void close_unwinding();
  bool device_is_stuck() const { return shutdown_.device_is_stuck(); }

  const GroupContext& context() const { return core_.context; }
  DeviceRuntime& runtime() const { return core_.runtime; }
  std::string own_name() const { return core_.own_name(); }

 private:
  friend class NcclWork;

  // The launch thread's.
  Progress advance(PendingCall& call) noexcept override;

  bool poll(PendingCall& call);
  void wait_for(PendingCall& call, const Deadline& deadline);
  void wait_on(PendingCall& call, StreamView stream, const Deadline& deadline);
  // `stream` waits for all that the group has put on the device.
  void block_behind_all(StreamView stream) noexcept;
  // Pushes the process's other groups, and sleeps until holds(); throws the cause of a failure, and at the deadline
  // fails the group for what holds up the call.
  template <typename Holds>
  void wait_until(PendingCall& call, const Deadline& deadline, Holds holds);
  [[noreturn]] void throw_failure() const;

  // Takes the memory that the call needs, and marks the compute stream that it comes behind, if it does.
  void prepare(PendingCall& call, bool follows, StreamView compute);
  template <typename Call>
  std::shared_ptr<WorkState> enqueue(const std::shared_ptr<Call>& call);
  // The scope, the launch thread, and a thread that connects.
  void connect_by(const Deadline& deadline);
  void on_cause();
  void on_news();
  void close_as(std::optional<std::string> cause);
  void end_in_order();
  void let_parts_go();
  void ask_who_is_lost();

  GroupCore core_;
  GroupScope scope_;
  Watchdog watchdog_;
  NcclShutdown shutdown_;
  mutable Mutex mutex_;
  std::shared_ptr<LaunchThread> launch_thread_ GUARDED_BY(mutex_);
  bool launch_failed_ = false;                 // the launch thread's
  bool connected_ GUARDED_BY(mutex_) = false;  // or could not
  bool given_up_ GUARDED_BY(mutex_) = false;   // nobody waits for the connection any more
  mutable std::atomic<bool> thrown_{false};    // the program knows of the failure
};

// A started call, as its Work sees it.
class NcclWork final : public WorkState {
 public:
  NcclWork(std::shared_ptr<NcclEngine> engine, std::shared_ptr<PendingCall> call)
      : engine_(std::move(engine)), call_(std::move(call)) {}

  bool poll() override { return engine_->poll(*call_); }
  void wait(const Deadline& deadline) override { engine_->wait_for(*call_, deadline); }
  void wait_on(StreamView stream, const Deadline& deadline) override { engine_->wait_on(*call_, stream, deadline); }
  void* end_mark() const override {
    return call_->has_reached(PendingCall::State::launched) ? call_->finished.get() : nullptr;
  }
  std::int64_t combined(std::size_t word) const override {
    return call_->has_reached(PendingCall::State::done) ? call_->combined(word) : 0;
  }

 private:
  std::shared_ptr<NcclEngine> engine_;
  std::shared_ptr<PendingCall> call_;
};

}  // namespace lockstep::nccl
