// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/watchdog.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/nccl/shutdown.h"

namespace lockstep::nccl {
namespace {

// Between two looks at what the device and NCCL have come to, while the host has nothing else to do.
constexpr std::chrono::milliseconds kBeat{50};
// How long this rank waits for a better cause than an error of NCCL's: another rank may be about to name the dead one.
constexpr std::chrono::milliseconds kErrorPatience{500};

}  // namespace

// The thread holds the engine, and with it all that it looks at: one that a hanging driver keeps may outlive close().
void Watchdog::start() {
  thread_.emplace(core_.context.device, [this, alive = core_.engine.lock()] { run(); });
}

void Watchdog::stop(comm::ActiveTimeout patience) {
  if (!thread_) return;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify();
  while (!thread_->wait(patience.next())) {
    if (!patience.over()) continue;
    log_error(
        "nccl: a call of the GPU's driver has not returned on {}, so lockstep ends the group without waiting for the "
        "call's thread; see whether nvidia-smi answers",
        core_.own_name());
    break;
  }
  thread_.reset();
}

void Watchdog::retire() {
  const auto retired = core_.calls.retire(core_.runtime, [this] { return core_.failure.happened(); });
  // The call is never done; its waiters get the failure.
  if (retired.problem) core_.propose(Cause::Kind::mismatch, -1, *retired.problem);
  if (retired.any) core_.notify();
}

void Watchdog::report(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  changed_.notify();
}

void Watchdog::begin_end() {
  MutexLock lock(mutex_);
  ending_ = true;
}

bool Watchdog::is_ending() const {
  MutexLock lock(mutex_);
  return ending_;
}

void Watchdog::run() {
  try {
    for (;;) {
      const std::uint64_t seen = changed_.count();
      if (!look()) return;
      changed_.wait(seen, Deadline::after(kBeat));
    }
  } catch (const CallFailed& error) {
    fail_for(error);
  } catch (const Error& error) {
    if (error.cause() != nullptr) return core_.failure.propose(*error.cause());
    core_.propose(Cause::Kind::failed, core_.rank,
                  fmt::format("{} can't continue: {}", core_.own_name(), error.what()));
  } catch (const std::exception& error) {
    core_.propose(Cause::Kind::failed, core_.rank,
                  fmt::format("{} can't continue: {}", core_.own_name(), error.what()));
  }
}

bool Watchdog::look() {
  core_.failure.check();
  {
    MutexLock lock(mutex_);
    // Stop before errors: a group that has ended must not fail for an error that was reported on the way.
    if (stopped_) return false;
    if (error_) std::rethrow_exception(error_);
  }
  const auto first = core_.calls.front();
  if (const auto left = first ? scope_.left_before(*first) : std::nullopt) core_.failure.fail(*left);
  if (!next_look_.expired()) return true;
  next_look_ = Deadline::after(kBeat);
  // Retired first: only what is still at the front after that may have used up its time.
  retire();
  look_at_front();
  return true;
}

void Watchdog::look_at_front() {
  std::shared_ptr<PendingCall> front = core_.calls.front();
  if (front && !front->has_reached(PendingCall::State::launching)) front.reset();  // it is not its turn
  // Its time begins when it is its turn and what it reads is computed: how long that takes is the program's, until it
  // lets the group go. From then on that has a limit too, as in NcclShutdown::wait_for_device().
  const bool computed = front && (!front->ready || core_.runtime.reached(front->ready.get()));
  if (front != front_.lock() || computed != front_computed_) front_patience_.reset();
  front_ = front;
  front_computed_ = computed;
  if (!front) return;
  if (!front_patience_ && (computed || is_ending())) {
    front_patience_.emplace(core_.context.timeout);
    front_limit_ = Deadline::after(core_.context.timeout);
  }
  if (front_patience_ && front_patience_->over()) {
    if (!computed) fail_for_unfinished_kernels(core_, *front_limit_);
    core_.failure.fail(scope_.diagnose_timeout(*front, *front_limit_));
  }
  // Another thread that calls NCCL now hears of an error itself.
  const CommunicatorLock lock(core_.communicator, Deadline::after({}));
  if (lock.held() && !core_.failure.happened()) core_.communicator.is_through();
}

void Watchdog::fail_for(const CallFailed& error) {
  try {
    // A device that a kernel has broken says so at every call, and NCCL says "unhandled cuda error", which alone would
    // name no rank.
    if (error.result() == ncclUnhandledCudaError) core_.runtime.memory(core_.context.device);
  } catch (const DeviceError& broken) {
    core_.propose(
        Cause::Kind::failed, core_.rank,
        fmt::format("{} can't continue: {}; {}", core_.own_name(), broken.what(), core_.where_this_rank_was()));
    return;
  }
  // A remote error has had its time.
  if (error.may_be_a_consequence() && error.result() != ncclRemoteError) {
    core_.wait_until(Deadline::after(kErrorPatience), [&] { return core_.failure.happened(); });
  }
  // A remote error names nobody: another rank's process may have ended.
  core_.propose(Cause::Kind::failed, error.may_be_a_consequence() ? -1 : core_.rank,
                fmt::format("{} can't continue: {}; {}; a rank it talks to may have died, or the network; "
                            "NCCL_DEBUG=WARN says more",
                            core_.own_name(), error.what(), core_.where_this_rank_was()));
}

}  // namespace lockstep::nccl
