// How a group ends: in order, or aborted.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/failure/patience.h"
#include "runtime/comm/nccl/compute_ahead.h"
#include "runtime/comm/nccl/engine.h"
#include "runtime/comm/nccl/helper_call.h"

namespace lockstep::nccl {

namespace {

// Between two looks at what others do.
constexpr std::chrono::milliseconds kLook{20};

// Runs `body` in a thread of its own. Returns its error, null if there was none; nothing if it has not come back when
// the patience is over, which counts once `counts` says so.
std::optional<std::exception_ptr> call_aside(
    DeviceId device, const std::function<void()>& body, comm::Patience patience,
    const std::function<bool()>& counts = [] { return true; }) {
  const comm::Patience whole = patience;
  std::optional<HelperCall> call;
  try {
    call.emplace(device, body);
  } catch (const SystemError&) {
    // No thread for it: then nobody watches over this one.
    const FormerDevice former;
    ::cudaSetDevice(device.index);
    try {
      body();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  while (!call->wait(patience.next())) {
    if (!counts()) {
      patience = whole;
    } else if (patience.over()) {
      return std::nullopt;
    }
  }
  return call->error();
}

}  // namespace

void Engine::on_cause() {
  bool tell = false;
  {
    MutexLock lock(mutex_);
    notify();
    tell = !told_by_another_;
  }
  if (tell) {
    control_.post(write({EntryKind::failed, {}, encode(failure_.known())}));
  }
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    undertaker_called_ = true;
    notify();
    try {
      // Whoever closes the group waits for it.
      undertaker_ = start_quiet_thread([this] { undertake(); });
      return;
    } catch (const std::exception& error) {
      log_error("nccl: no thread to abort the communicator of {}: {}; another does it", own_name(), error.what());
    }
    owner_undertakes_ = true;
    if (!parked_) return;
  }
  undertake();
}

// The process is free or gone when this patience is over, whatever part of it the owner takes, and what the program
// computes before its collectives has ended.
void Engine::undertake() {
  comm::Patience patience(knobs_.abort_patience);
  const auto of_the_abort = knobs_.abort_patience * 3 / 5;
  {
    // The owner is in a call at most, and NCCL's return at once.
    MutexLock lock(mutex_);
    while (!parked_ && patience.remaining(comm::Patience::Time::clock::now()) > of_the_abort) {
      changed_.wait_until(mutex_, patience.next());
    }
  }
  bury(patience);
}

void Engine::bury(comm::Patience patience) {
  const auto complain = [this](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::exception& problem) {
      log_warn("nccl: after the abort of {}: {}", own_name(), problem.what());
    }
  };
  ComputeAhead ahead(runtime_, context_.device, ready_events(),
                     {.kernels = context_.timeout, .question = knobs_.abort_patience});
  const auto aborted = call_aside(
      context_.device, [self = shared_from_this()] { self->abort_communicator(); }, patience,
      [&] { return ahead.ended(); });
  if (!aborted) {
    if (ahead.took_too_long()) {
      log_error("nccl: what the program computes on {} before its collectives has not ended in {} s",
                context_.device.str(), std::chrono::duration<double>(context_.timeout).count());
    }
    return end_the_process("the abort");
  }
  complain(*aborted);
  // Kernels have left, and what is behind them goes through once the program's own before them have ended. These may
  // take their time: no reason to end a process that can still save its state.
  const auto drain = [self = shared_from_this()] {
    const Deadline limit = Deadline::after(self->knobs_.abort_patience);
    if (self->stream_) self->runtime_.synchronize({self->context_.device, self->stream_.get()}, limit);
  };
  const auto drained = call_aside(context_.device, drain, comm::Patience(2 * knobs_.abort_patience));
  if (drained) {
    complain(*drained);
  } else {
    log_warn("nccl: after the abort of {}: a call of the GPU's driver has not come back on {}", own_name(),
             context_.device.str());
  }
  MutexLock lock(mutex_);
  let_go_ = true;
  notify();
}

std::vector<std::shared_ptr<void>> Engine::ready_events() {
  std::vector<std::shared_ptr<void>> events;
  const auto add = [&](const std::shared_ptr<Item>& item) {
    if (item && item->ready) events.push_back(item->ready);
  };
  {
    MutexLock lock(retire_mutex_);
    for (const auto& item : in_flight_) add(item);
  }
  MutexLock lock(mutex_);
  add(current_);
  return events;
}

void Engine::abort_communicator() {
  if (!communicator_ || communicator_->abort()) return;
  log_warn("nccl: the abort of {} reports an error", own_name());
}

void Engine::end_the_process(const char* what) {
  log_error("nccl: {} of {} has not returned in {} s", what, own_name(),
            std::chrono::duration<double>(knobs_.abort_patience).count());
  if (failure_.happened()) log_error("nccl: the group had failed: {}", failure_.known().text);
  for (const std::string& line : flight_record_.lines()) log_error("nccl: flight record: {}", line);
  if (knobs_.watchdog) {
    log_error("nccl: the process ends with exit code {}; LOCKSTEP_FAILURE_WATCHDOG=off lets it go on",
              kExitAbortBlocked);
    ::_exit(kExitAbortBlocked);
  }
  log_error("nccl: the process goes on, with a device that may never come free (LOCKSTEP_FAILURE_WATCHDOG=off)");
  MutexLock lock(mutex_);
  device_is_stuck_.store(true, std::memory_order_release);
  notify();
}

bool Engine::wait_for_goodbyes() {
  // As long as a collective may take: the slowest rank may be in the last one, and its device needs all the others'.
  comm::Patience patience(context_.timeout);
  for (;;) {
    watch();
    MutexLock lock(mutex_);
    if (somebody_aborted_ || failure_.happened()) return false;
    bool all = true;
    for (const auto& left : left_after_) all &= left.has_value();
    if (all) return true;
    if (patience.over()) return false;
    changed_.wait_until(mutex_, patience.next());
  }
}

// NCCL's own end does so too, but nobody could say then what it waits for, nor stop it.
void Engine::wait_for_the_device() {
  const Deadline limit = Deadline::after(context_.timeout);
  HelperCall call(context_.device, [device = context_.device] { nccl::wait_for_device(device); });
  while (!call.wait(limit.sooner(kLook))) {
    failure_.check();
    watch();
    if (limit.expired()) fail_for_what_is_computed(limit);
  }
  if (const auto error = call.error()) std::rethrow_exception(error);
}

void Engine::fail_for_what_is_computed(const Deadline& limit) {
  fail(Cause::Kind::timeout, rank_,
       fmt::format("nccl: {} ends its group, and {} is not through with what the program has put there, {}; "
                   "wait for the streams before the group goes, or raise the timeout",
                   own_name(), context_.device.str(), limit.progress()));
}

// It waits for the other ranks of the host, and for the device: late is no failure.
void Engine::destroy() {
  const Deadline limit = Deadline::after(context_.timeout);
  comm::Patience patience(knobs_.abort_patience);
  std::optional<comm::Patience> since_failure;
  HelperCall call(context_.device, [self = shared_from_this()] { self->communicator_->destroy(); });
  for (bool said = false; !call.wait(limit.sooner(kLook));) {
    if (!since_failure && failure_.happened()) since_failure.emplace(knobs_.abort_patience);
    if (since_failure && since_failure->over()) return end_the_process("ncclCommDestroy");
    if (patience.over() && !std::exchange(said, true)) {
      log_warn(
          "nccl: ncclCommDestroy of {} has not returned in {} s; it waits for the other ranks of its host, and for "
          "what runs on {}",
          own_name(), std::chrono::duration<double>(knobs_.abort_patience).count(), context_.device.str());
    }
    if (!limit.expired()) continue;
    log_error("nccl: ncclCommDestroy of {} has not returned, {}, and is left behind", own_name(), limit.progress());
    return;
  }
  try {
    if (const auto error = call.error()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    log_warn("nccl: the end of the communicator of {}: {}", own_name(), error.what());
  }
}

Entry Engine::goodbye() const {
  MutexLock lock(mutex_);
  Entry entry{EntryKind::left, {rank_, static_cast<std::int64_t>(last())}};
  for (const auto& [peer, counts] : messages_) {
    entry.numbers.insert(entry.numbers.end(), {peer, counts.sent, counts.received});
  }
  return entry;
}

// All say that they stop, with their last collective, before the first of them takes its end of the connections away.
// Before each call it is asked whether the group has failed meanwhile: then the communicator is the undertaker's.
void Engine::leave() {
  control_.post(write(goodbye()));
  const bool all_left = wait_for_goodbyes();
  failure_.check();
  if (!all_left) {
    log_info("nccl: {} does not wait any longer for the others to leave, and aborts its communicator", own_name());
    control_.post(write({EntryKind::aborted, {rank_}}));
    bury(comm::Patience(knobs_.abort_patience));
    world_size_.reset();
    return;
  }
  wait_for_the_device();
  retire();
  std::function<void(const Lane&)> last_wish;
  {
    MutexLock lock(mutex_);
    last_wish.swap(at_the_end_);
  }
  failure_.check();
  if (last_wish) last_wish(lane());
  const Deadline limit = Deadline::after(context_.timeout);
  failure_.check();
  communicator_->finalize();
  settle(limit, "the end of the communicator", "each rank must let its group go");
  failure_.check();
  destroy();
  world_size_.reset();
  MutexLock lock(mutex_);
  let_go_ = true;
}

// The job's membership calls lose() no more once the group is let go of (comm/init/group_watch.h), and NCCL need not
// see a death: who waits for the end asks. The owner thread, which may be in a call of the driver's, looks at the
// failure.
void Engine::ask_who_is_lost() {
  if (!context_.check || failure_.happened()) return;
  try {
    context_.check();
  } catch (const Error& lost) {
    std::string where;
    {
      MutexLock lock(mutex_);
      where = where_this_rank_was();
    }
    Cause cause = lost.cause() != nullptr ? *lost.cause() : cause_of(Cause::Kind::lost, -1, lost.what());
    cause.text += "; " + where;
    failure_.propose(cause);
  }
}

// It makes no call that waits. Should one do so all the same, an abort gets it out, or the watchdog ends the process.
void Engine::join_owner() {
  if (!owner_.joinable()) return;
  std::optional<comm::Patience> patience;
  for (;;) {
    bool parked = false;
    {
      MutexLock lock(mutex_);
      if (!parked_) changed_.wait_until(mutex_, Deadline::after(kLook));
      parked = parked_;
    }
    if (parked) return owner_.join();
    ask_who_is_lost();
    // For the abort, and for what it waits for.
    if (!patience && failure_.happened()) patience.emplace(3 * knobs_.abort_patience);
    if (patience && patience->over()) break;
  }
  log_error("nccl: a call of NCCL has not come back on {}, and its thread is left behind", own_name());
  owner_.detach();
}

void Engine::join_undertaker() {
  std::thread undertaker;
  {
    MutexLock lock(mutex_);
    undertaker.swap(undertaker_);
  }
  if (undertaker.joinable()) undertaker.join();
}

void Engine::close_as(std::optional<std::string> cause) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
  }
  if (!failure_.happened()) {
    try {
      retire();
    } catch (const std::exception& error) {
      // A broken device. Whoever closes is a destructor as a rule, perhaps of a program that ends for the same reason.
      if (!cause) cause = fmt::format("{} can't go on: {}", own_name(), error.what());
    }
  }
  if (!cause && !failure_.happened()) {
    if (const UnderWay left = under_way(); left.collectives + left.messages > 0) {
      cause = comm::destroyed_text(own_name(), left.collectives, left.messages);
    }
  }
  if (cause) propose(Cause::Kind::failed, rank_, *cause);
  {
    MutexLock lock(mutex_);
    closing_ = true;
    notify();
  }
  join_owner();
  {
    MutexLock lock(mutex_);
    // Whoever brings a cause makes it known first, and calls the undertaker then.
    comm::Patience patience(knobs_.abort_patience);
    while (failure_.happened() && !undertaker_called_ && !patience.over()) {
      changed_.wait_until(mutex_, patience.next());
    }
    closed_ = true;  // no undertaker comes after this
    notify();
  }
  join_undertaker();
  control_.stop();
  MutexLock retire_lock(retire_mutex_);
  MutexLock lock(mutex_);
  launching_.reset();
  in_flight_.clear();
  queue_.clear();
  errands_.clear();
  current_.reset();
  at_the_end_ = nullptr;
}

void Engine::close() {
  close_as({});
  if (!failure_.happened() || thrown_.load(std::memory_order_relaxed)) return;
  // Nobody is left to throw it to.
  log_warn("nccl: the group of {} has not ended in order: {}", own_name(), failure_.known().text);
}

void Engine::close_unwinding() { close_as(comm::unwound_text(own_name(), last())); }

}  // namespace lockstep::nccl
