// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/nccl_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/nccl/connect.h"
#include "runtime/comm/nccl/detachable_call.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::nccl {
namespace {

using State = PendingCall::State;

// A host that waits for the device, which rings nobody: looks without a pause, then the first and the longest pause.
constexpr int kLooksAtOnce = 100;
constexpr std::chrono::nanoseconds kFirstPause = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds kLongestPause = std::chrono::milliseconds(1);
// The watchdog's question to NCCL takes less.
constexpr std::chrono::milliseconds kLookOfAnother{1};

}  // namespace

NcclEngine::NcclEngine(const Api& api, DeviceRuntime& runtime, GroupContext context, Options options)
    : core_(api, runtime, std::move(context), options, [this] { on_cause(); }),
      scope_(core_, [this] { on_news(); }),
      watchdog_(core_, scope_),
      shutdown_(core_, scope_, watchdog_) {}

NcclEngine::~NcclEngine() = default;

void NcclEngine::open(const Deadline& deadline) {
  core_.engine = weak_from_this();
  try {
    {
      MutexLock lock(mutex_);
      launch_thread_ = LaunchThread::of(core_.context.device);
    }
    scope_.start();
    connect_by(deadline);
    watchdog_.start();
  } catch (const std::exception& error) {
    close_as(fmt::format("{} could not join the group: {}", own_name(), error.what()));  // unless it is known why
    let_parts_go();
    throw;
  }
}

void NcclEngine::connect_by(const Deadline& deadline) {
  DetachableCall call(core_.context.device, [this, alive = shared_from_this(), deadline] {
    std::exception_ptr error;
    try {
      connect(core_, deadline);
    } catch (...) {
      error = std::current_exception();
    }
    bool given_up = false;
    {
      MutexLock lock(mutex_);
      connected_ = true;
      given_up = given_up_;
    }
    // Whoever gave up has left: the communicator that came late is this thread's to free.
    if (given_up) shutdown_.abort_now();
    if (error) std::rethrow_exception(error);
  });
  // It says itself what holds it up, unless a call hangs.
  comm::ActiveTimeout overdue(core_.options.abort_patience);
  while (!call.wait(Deadline::after(GroupCore::kLook))) {
    comm::ProgressEngine::of_process().push_all_but(nullptr);  // a peer may wait for one of them before it connects
    if (!deadline.expired()) {
      overdue = comm::ActiveTimeout(core_.options.abort_patience);
    } else if (overdue.over()) {
      MutexLock lock(mutex_);
      given_up_ = !connected_;
      if (given_up_) break;
    }
  }
  {
    MutexLock lock(mutex_);
    if (!given_up_) {
      if (const auto error = call.error()) std::rethrow_exception(error);
      return;
    }
  }
  const std::string text = fmt::format(
      "nccl: a call of NCCL or of the GPU's driver has not returned on {}, {}; see whether nvidia-smi answers, and "
      "what NCCL_DEBUG=INFO says",
      core_.own_name(), deadline.progress());
  shutdown_.close();  // the abort is the call's, when it comes back
  core_.propose(Cause::Kind::timeout, core_.rank, text);
  throw Timeout(text);
}

// The first cause is known to all before anything is torn down. Calls that are not launched leave the launch thread's
// queue at once, so that other groups' proceed; the others end with the abort.
void NcclEngine::on_cause() {
  std::shared_ptr<LaunchThread> launch_thread;
  {
    MutexLock lock(mutex_);
    launch_thread = launch_thread_;
  }
  if (launch_thread) launch_thread->remove(*this);
  watchdog_.notify();
  core_.notify();
  shutdown_.start_abort();
}

void NcclEngine::on_news() {
  core_.notify();
  watchdog_.notify();
  MutexLock lock(mutex_);
  if (launch_thread_) launch_thread_->notify();
}

void NcclEngine::check() const {
  if (core_.failure.happened()) throw_failure();
  if (shutdown_.is_closed()) comm::throw_closed(core_.own_name());
}

void NcclEngine::prepare(PendingCall& call, bool follows, StreamView compute) {
  check();
  LaunchContext context = core_.launch_context();
  context.communicator = nullptr;
  call.prepare(context);
  if (!follows) return;
  call.ready = core_.runtime.create_event(core_.context.device, false);
  core_.runtime.record(call.ready.get(), compute);
}

template <typename Call>
std::shared_ptr<WorkState> NcclEngine::enqueue(const std::shared_ptr<Call>& call) {
  core_.calls.add(call);
  if (core_.options.check_collectives && call->record() != nullptr) scope_.say_called(*call);
  {
    MutexLock lock(mutex_);
    launch_thread_->enqueue({shared_from_this(), this}, call);
  }
  return std::make_shared<NcclWork>(shared_from_this(), call);
}

std::shared_ptr<WorkState> NcclEngine::start(comm::CollectiveArgs args, StreamView compute) {
  const bool on_device = args.record.kind == comm::OpKind::barrier || args.output.device.kind != DeviceKind::cpu ||
                         args.input.device.kind != DeviceKind::cpu;
  const auto collective = std::make_shared<NcclCollective>(std::move(args));
  prepare(*collective, on_device, compute);
  return enqueue(collective);
}

std::shared_ptr<WorkState> NcclEngine::start(const std::shared_ptr<NcclMessage>& message, StreamView compute) {
  prepare(*message, message->p2p.buffer.device.kind != DeviceKind::cpu, compute);
  return enqueue(message);
}

// A look at the failure comes behind the lock: what has failed may be aborted from then on.
LaunchClient::Progress NcclEngine::advance(PendingCall& call) noexcept {
  try {
    const CommunicatorLock lock(core_.communicator, Deadline::after(kLookOfAnother));
    if (launch_failed_ || core_.failure.happened()) return Progress::gone;
    if (!lock.held()) return Progress::in_nccl;  // another thread is in a call that does not wait; the look has paused
    const LaunchContext context = core_.launch_context();
    if (!call.has_reached(State::launching)) {
      if (core_.options.check_collectives && call.record() != nullptr && !scope_.all_have_called(call)) {
        return Progress::waits;
      }
      call.state.store(State::launching, std::memory_order_release);
      call.launch(context);
    }
    // NCCL launches in a thread of its own: an event that is recorded before it has done so marks nothing.
    if (!core_.communicator.is_through()) return Progress::in_nccl;
    call.after_launch(context);
    call.finished = core_.runtime.create_event(core_.context.device, true);
    core_.runtime.record(call.finished.get(), context.stream);
    if (call.sequence != 0) core_.calls.flight_record().launched(call.sequence);
    call.state.store(State::launched, std::memory_order_release);
    core_.notify();
    return Progress::launched;
  } catch (...) {
    // To agree on a cause takes its time, which is not this thread's. Until there is one, a later call would meet the
    // other ranks' earlier one.
    launch_failed_ = true;
    watchdog_.report(std::current_exception());
    return Progress::gone;
  }
}

void NcclEngine::call_nccl(const char* what, std::function<void(const LaunchContext&)> body) {
  check();
  const Deadline deadline = Deadline::after(core_.context.timeout);
  const auto error = std::make_shared<std::exception_ptr>();  // of the body
  DetachableCall call(core_.context.device, [this, alive = shared_from_this(), body = std::move(body), error] {
    core_.with_communicator([&] {
      try {
        body(core_.launch_context());
      } catch (...) {
        *error = std::current_exception();
      }
    });
  });
  while (!call.wait(deadline.sooner(GroupCore::kLook)) && !deadline.expired() && !core_.failure.happened()) {
    comm::ProgressEngine::of_process().push_all_but(nullptr);
  }
  if (call.wait(Deadline::after({}))) {
    if (*error) std::rethrow_exception(*error);
    if (!call.error()) return;
  }
  core_.propose(Cause::Kind::timeout, core_.rank,
                fmt::format("nccl: {} on {} is not done, {}; a call of NCCL or of the GPU's driver has not returned; "
                            "see whether nvidia-smi answers, and what NCCL_DEBUG=INFO says",
                            what, core_.own_name(), deadline.progress()));
  throw_failure();
}

bool NcclEngine::poll(PendingCall& call) {
  if (call.has_reached(State::done)) return true;
  if (call.has_reached(State::launched)) watchdog_.retire();
  if (call.has_reached(State::done)) return true;
  check();
  return false;
}

template <typename Holds>
void NcclEngine::wait_until(PendingCall& call, const Deadline& deadline, Holds holds) {
  comm::ProgressEngine& progress = comm::ProgressEngine::of_process();
  std::chrono::nanoseconds pause = kFirstPause;
  for (int looks = 0;; ++looks) {
    // Asleep before it looks, so a ring after the look wakes it.
    const comm::ScopedSleeper asleep(progress.bell().on_bell);
    const std::uint64_t rung = progress.bell().bell.load(std::memory_order_seq_cst);
    if (holds()) return;
    if (deadline.expired()) {
      core_.failure.propose(scope_.diagnose_timeout(call, deadline));
      throw_failure();
    }
    progress.push_all_but(nullptr);
    if (!call.has_reached(State::launched)) {
      progress.sleep(rung, deadline.remaining());
    } else if (looks < kLooksAtOnce) {
      std::this_thread::yield();
    } else {
      progress.sleep(rung, std::min(deadline.remaining(), pause));
      pause = std::min(kLongestPause, pause * 2);
    }
  }
}

void NcclEngine::wait_for(PendingCall& call, const Deadline& deadline) {
  wait_until(call, deadline, [&] { return poll(call); });
}

void NcclEngine::wait_on(PendingCall& call, StreamView stream, const Deadline& deadline) {
  if (stream.device != core_.context.device) {
    // Host code comes behind it, so the host waits.
    if (stream.device.kind == DeviceKind::cpu) return wait_for(call, deadline);
    throw InvalidArgument(fmt::format(
        "wait_on on {}: the stream is of {}, but the group computes on {}; give a stream of the group's device",
        own_name(), stream.device.str(), core_.context.device.str()));
  }
  core_.runtime.check_not_captured("wait_on", stream);
  // The host writes the result: no stream can wait for that.
  if (call.is_for_host()) return wait_for(call, deadline);
  try {
    wait_until(call, deadline, [&] {
      check();
      return call.has_reached(State::launched);
    });
  } catch (const Error&) {
    block_behind_all(stream);
    throw;
  }
  call.handed_on.store(true, std::memory_order_relaxed);
  // Under no lock: where the stream's queue is full this waits for the device, and the other threads must not wait with
  // it. They may ask for the same event meanwhile, which CUDA allows.
  core_.runtime.block(stream, call.finished.get());
}

// The device may do parts of a failed group's calls after the failure was thrown: what is freed in `stream` from now on
// is not taken from them. A launch that is under way gets a moment to put its part there.
void NcclEngine::block_behind_all(StreamView stream) noexcept {
  if (!core_.stream) return;  // closed
  try {
    const CommunicatorLock lock(core_.communicator, Deadline::after(GroupCore::kLook));
    const auto event = core_.runtime.create_event(core_.context.device, false);
    core_.runtime.record(event.get(), core_.launch_context().stream);
    core_.runtime.block(stream, event.get());
  } catch (const std::exception& error) {
    log_debug("nccl: {} has no order with its failed group: {}", stream.device.str(), error.what());
  }
}

void NcclEngine::throw_failure() const {
  shutdown_.await_release();
  thrown_.store(true, std::memory_order_relaxed);
  core_.failure.raise();
}

void NcclEngine::on_peer_failure(Cause cause) {
  const auto rank = comm::rank_in(core_.context.roster, cause.rank);
  if (shutdown_.is_closed() || (rank && scope_.has_left(*rank))) return;
  cause.text = comm::named_by_group(core_.context.roster, cause.text + "; " + core_.where_this_rank_was());
  core_.failure.propose_async(cause);
}

// The job's membership no longer calls on_peer_failure() once the group is let go of (comm/init/group_watch.h), and
// NCCL need not see a death: the thread that waits for the end asks.
void NcclEngine::ask_who_is_lost() {
  if (!core_.context.check || core_.failure.happened()) return;
  try {
    core_.context.check();
  } catch (const Error& lost) {
    Cause cause = lost.cause() != nullptr ? *lost.cause() : core_.cause_of(Cause::Kind::lost, -1, lost.what());
    cause.text = comm::named_by_group(core_.context.roster, cause.text + "; " + core_.where_this_rank_was());
    core_.failure.propose(cause);
  }
}

// On a thread of its own, since each call of the driver's may hang. An abort gets it out then, or the watchdog ends the
// process.
void NcclEngine::end_in_order() {
  std::optional<DetachableCall> call;
  try {
    call.emplace(core_.context.device, [this, alive = shared_from_this()] { shutdown_.end(); });
  } catch (const std::exception& error) {  // no thread for it: the abort may do without
    return core_.propose(Cause::Kind::failed, core_.rank,
                         fmt::format("{} can't end in order: {}", own_name(), error.what()));
  }
  DetachableCall& end = *call;
  std::optional<comm::ActiveTimeout> patience;  // for the abort, and for what it waits for
  while (!end.wait(Deadline::after(GroupCore::kLook))) {
    comm::ProgressEngine::of_process().push_all_but(nullptr);  // a peer that is to say goodbye may wait for one of them
    ask_who_is_lost();
    if (!patience && core_.failure.happened()) patience.emplace(3 * core_.options.abort_patience);
    if (!patience || !patience->over()) continue;
    log_error(
        "nccl: a call of NCCL has not returned on {}, so lockstep ends the group without waiting for the call's "
        "thread; see whether nvidia-smi answers",
        own_name());
    return;
  }
  try {
    if (const auto error = end.error()) std::rethrow_exception(error);
  } catch (const CallFailed& error) {
    watchdog_.report(std::current_exception());
    core_.wait_until(comm::ActiveTimeout(core_.options.abort_patience), [&] { return core_.failure.happened(); });
  } catch (const std::exception& error) {
    core_.propose(Cause::Kind::failed, core_.rank, fmt::format("{} can't continue: {}", own_name(), error.what()));
  }
}

// Why this order. A cause is proposed before the end begins, so that a rank which owes something never says goodbye.
// The watchdog outlives the orderly end, in which calls may still time out, and the abort, which needs nobody else's
// word. The launch thread is let go of when this group has ended: the last group of a device joins it, for 2 s at most
// where an abort has left it in a call that hangs. The scope goes last: it brings the others' causes and answers their
// questions until then.
void NcclEngine::close_as(std::optional<std::string> cause) {
  if (shutdown_.is_closed()) return;
  if (!core_.failure.happened()) {
    try {
      watchdog_.retire();
    } catch (const std::exception& error) {
      // A broken device. A destructor closes as a rule, perhaps of a program that ends for the same reason: nothing is
      // thrown.
      if (!cause) cause = fmt::format("{} can't continue: {}", own_name(), error.what());
    }
  }
  if (!cause && !core_.failure.happened()) {
    const CallList::Counts left = core_.calls.not_handed_on();
    if (left.collectives + left.messages > 0) {
      cause = comm::destroyed_text(own_name(), left.collectives, left.messages);
    }
  }
  if (cause) core_.propose(Cause::Kind::failed, core_.rank, *cause);
  watchdog_.begin_end();
  if (!core_.failure.happened()) end_in_order();
  shutdown_.close();
  let_parts_go();
}

void NcclEngine::let_parts_go() {
  watchdog_.stop(comm::ActiveTimeout(core_.options.abort_patience));
  std::shared_ptr<LaunchThread> launch_thread;
  {
    MutexLock lock(mutex_);
    launch_thread.swap(launch_thread_);
  }
  // Let go of without the lock: the last group joins the launch thread, for which on_news() must not wait.
  if (launch_thread) launch_thread->remove(*this);
  scope_.stop();
  core_.calls.clear();
}

void NcclEngine::close() {
  close_as({});
  if (!core_.failure.happened() || thrown_.load(std::memory_order_relaxed)) return;
  // Nobody is left to throw it to.
  log_warn(
      "nccl: the group of {} has not ended in order: {}; look at the other ranks' output, and don't use results of "
      "operations on which this rank has not waited",
      own_name(), core_.failure.known().text);
}

void NcclEngine::close_unwinding() { close_as(comm::unwound_text(own_name(), last())); }

}  // namespace lockstep::nccl
