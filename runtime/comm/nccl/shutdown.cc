// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/shutdown.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/line_output.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/nccl/compute_ahead.h"
#include "runtime/comm/nccl/detachable_call.h"
#include "runtime/job/exit_code.h"

namespace lockstep::nccl {
namespace {

// How long the owner of a failed group waits for the device before the cause is thrown. The abort continues meanwhile.
constexpr std::chrono::milliseconds kReleasePatience{900};
// Between two questions whether NCCL is through: at first, and at last.
constexpr std::chrono::microseconds kFirstLook{20};
constexpr std::chrono::microseconds kLastPause{1000};

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

void warn_of(const GroupCore& core, const char* what, const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& problem) {
    log_warn("nccl: {} of {}: {}", what, core.own_name(), problem.what());
  }
}

}  // namespace

void fail_for_unfinished_kernels(GroupCore& core, const Deadline& limit) {
  core.fail(Cause::Kind::timeout, core.rank,
            fmt::format("nccl: {} ends its group, and {} has not finished what the program queued there, {}; wait for "
                        "the streams before you destroy the group, or raise the timeout",
                        core.own_name(), core.context.device.str(), limit.progress()));
}

void await_nccl(GroupCore& core, const Deadline& deadline, const char* what, const char* remedy) {
  std::chrono::nanoseconds pause = kFirstLook;
  while (!core.with_communicator([&] { return core.communicator.is_through(); })) {
    if (core.context.check) core.context.check();
    if (deadline.expired()) {
      core.fail(Cause::Kind::timeout, -1,
                fmt::format(
                    "nccl: {} of {} ranks has not finished on {}, {}; all have arrived, and NCCL does not continue; {}",
                    what, core.size, core.own_name(), deadline.progress(), remedy));
    }
    core.wait_until(Deadline::after(pause), [&] { return core.failure.happened(); });
    pause = std::min<std::chrono::nanoseconds>(kLastPause, pause * 2);
  }
}

void NcclShutdown::at_the_end(std::function<void(const LaunchContext&)> body) {
  MutexLock lock(mutex_);
  at_the_end_ = std::move(body);
}

void NcclShutdown::start_abort() {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    abort_started_ = true;
    try {
      abort_thread_ = start_quiet_thread([this] { abort_now(); }, "lockstep-nccl");
      // close() waits until the abort has started.
      core_.notify();
      return;
    } catch (const std::exception& error) {
      log_error(
          "nccl: no thread could be started to abort the communicator of {}, so the thread that found the failure "
          "aborts the communicator: {}; raise 'ulimit -u'",
          core_.own_name(), error.what());
    }
  }
  core_.notify();
  abort_now();
}

void NcclShutdown::abort_now() { abort_and_drain(comm::ActiveTimeout(core_.options.abort_patience)); }

// The process is free or gone when this patience is over, whatever part of it another thread's call takes, and what the
// program computes before its collectives has ended.
void NcclShutdown::abort_and_drain(comm::ActiveTimeout patience) {
  // NCCL's calls return at once, so the communicator comes free soon. One that hangs is what the abort may end: then
  // the communicator is aborted from under it, while there is time for that.
  const auto for_the_abort = core_.options.abort_patience * 3 / 5;
  std::optional<CommunicatorLock> lock;
  do {
    lock.emplace(core_.communicator, patience.next());
  } while (!lock->held() && patience.remaining(comm::ActiveTimeout::Time::clock::now()) > for_the_abort);
  if (!abort(patience)) return;
  drain();
  release();
}

bool NcclShutdown::abort(comm::ActiveTimeout patience) {
  const DeviceId device = core_.context.device;
  ComputeAhead ahead(core_.runtime, device, core_.calls.ready_events(),
                     {.kernels = core_.context.timeout, .question = core_.options.abort_patience});
  DetachableCall call(
      device,
      [this, alive = core_.engine.lock()] {
        if (!core_.communicator.abort())
          log_warn("nccl: the abort of the communicator of {} reported an error; set NCCL_DEBUG=WARN to read more",
                   core_.own_name());
      },
      DetachableCall::NoThread::calls_here);
  const comm::ActiveTimeout whole = patience;
  while (!call.wait(patience.next())) {
    if (!ahead.ended()) {
      patience = whole;
    } else if (patience.over()) {
      if (ahead.took_too_long()) {
        log_error(
            "nccl: the program's kernels on {}, which run before its collectives, have not ended in {} s; look for a "
            "kernel that never ends",
            device.str(), seconds(core_.context.timeout));
      }
      end_the_process("the abort");
      return false;
    }
  }
  warn_of(core_, "the abort", call.error());
  return true;
}

// NCCL's kernels have left; the work behind them runs once the program's own kernels before them have ended. These may
// take their time, which is not a reason to end a process that can still save its state.
void NcclShutdown::drain() {
  DetachableCall call(
      core_.context.device,
      [this, alive = core_.engine.lock()] {
        const Deadline limit = Deadline::after(core_.options.abort_patience);
        if (core_.stream) core_.runtime.synchronize({core_.context.device, core_.stream.get()}, limit);
      },
      DetachableCall::NoThread::calls_here);
  for (comm::ActiveTimeout patience(2 * core_.options.abort_patience); !call.wait(patience.next());) {
    if (!patience.over()) continue;
    log_warn(
        "nccl: after the abort of the communicator of {}, a call of the GPU's driver has not returned on {}; see "
        "whether nvidia-smi answers",
        core_.own_name(), core_.context.device.str());
    return;
  }
  warn_of(core_, "after the abort", call.error());
}

void NcclShutdown::end_the_process(const char* what) {
  log_error(
      "nccl: {} of {} has not returned in {} s; see whether nvidia-smi answers. The next log lines list the group's "
      "last operations, and say whether this process ends",
      what, core_.own_name(), seconds(core_.options.abort_patience));
  if (core_.failure.happened()) log_error("nccl: the group had failed: {}", core_.failure.known().text);
  for (const std::string& line : core_.calls.flight_record().lines()) log_error("nccl: flight record: {}", line);
  if (core_.options.watchdog) {
    log_error(
        "nccl: this process ends with exit code {}, since its GPU does not answer; set LOCKSTEP_FAILURE_WATCHDOG=off "
        "to let such a process continue",
        kExitAbortBlocked);
    flush_stderr();
    ::_exit(kExitAbortBlocked);
  }
  log_error(
      "nccl: the process continues (LOCKSTEP_FAILURE_WATCHDOG=off), although its GPU may never become free; save what "
      "you need, and end the process");
  device_is_stuck_.store(true, std::memory_order_release);
  core_.notify();
}

void NcclShutdown::release() {
  released_.store(true, std::memory_order_release);
  core_.notify();
}

void NcclShutdown::await_release() const {
  core_.wait_until(Deadline::after(kReleasePatience),
                   [&] { return released_.load(std::memory_order_acquire) || device_is_stuck(); });
}

// Why this order. A rank that ends NCCL takes its end of the connections away, so all say first that they stop, with
// their last collective: a rank that still waits for one hears that it will not come. NCCL's own end waits for the
// device without a deadline, so this rank waits for it before, with one. Memory is deregistered while the communicator
// lives, and when no kernel uses it. finalize() is the last call that needs the peers, and destroy() frees what is
// left. Each call but destroy() is made under the communicator's lock, behind a look at the failure: a communicator
// that has failed is the abort's, which frees it. destroy() may block, so it holds no lock: it takes the communicator
// out first, and an abort meanwhile finds none.
void NcclShutdown::end() {
  core_.wait_until(Deadline::never(), [&] { return core_.failure.happened() || !core_.calls.front(); });
  core_.failure.check();
  scope_.say_goodbye();
  const bool all_left = wait_for_goodbyes();
  core_.failure.check();
  if (!all_left) {
    log_info("nccl: {} no longer waits for the other ranks to leave the group, and aborts its own communicator",
             core_.own_name());
    scope_.say_aborted();
    abort_now();
    core_.world_size.reset();
    return;
  }
  wait_for_device();
  watchdog_.retire();
  std::function<void(const LaunchContext&)> at_the_end;
  {
    MutexLock lock(mutex_);
    at_the_end.swap(at_the_end_);
  }
  core_.with_communicator([&] {
    if (at_the_end) at_the_end(core_.launch_context());
  });
  const Deadline limit = Deadline::after(core_.context.timeout);
  core_.with_communicator([&] { core_.communicator.finalize(); });
  await_nccl(core_, limit, "the end of the communicator", "each rank must destroy its group");
  destroy();
  core_.world_size.reset();
  release();
}

bool NcclShutdown::wait_for_goodbyes() {
  // As long as a collective may take: the slowest rank may be in the last one, and its device needs all the others'.
  core_.wait_until(comm::ActiveTimeout(core_.context.timeout),
                   [&] { return scope_.somebody_aborted() || core_.failure.happened() || scope_.all_have_left(); });
  return scope_.all_have_left() && !scope_.somebody_aborted();
}

// NCCL's own end does so too, but nobody could say then what it waits for, nor stop it.
void NcclShutdown::wait_for_device() {
  const Deadline limit = Deadline::after(core_.context.timeout);
  DetachableCall call(core_.context.device, [device = core_.context.device] { nccl::wait_for_device(device); });
  while (!call.wait(limit.sooner(GroupCore::kLook))) {
    core_.failure.check();
    if (limit.expired()) fail_for_unfinished_kernels(core_, limit);
  }
  if (const auto error = call.error()) std::rethrow_exception(error);
}

// It waits for the other ranks of the host, and for the device: to be late is not a failure.
void NcclShutdown::destroy() {
  core_.failure.check();
  const Deadline limit = Deadline::after(core_.context.timeout);
  comm::ActiveTimeout patience(core_.options.abort_patience);
  std::optional<comm::ActiveTimeout> since_failure;
  DetachableCall call(core_.context.device, [this, alive = core_.engine.lock()] { core_.communicator.destroy(); });
  for (bool said = false; !call.wait(limit.sooner(GroupCore::kLook));) {
    if (!since_failure && core_.failure.happened()) since_failure.emplace(core_.options.abort_patience);
    if (since_failure && since_failure->over()) return end_the_process("ncclCommDestroy");
    if (patience.over() && !std::exchange(said, true)) {
      log_warn(
          "nccl: ncclCommDestroy of {} has not returned in {} s; the call waits for the other ranks of this host and "
          "for the kernels on {}: see whether these ranks and kernels still run",
          core_.own_name(), seconds(core_.options.abort_patience), core_.context.device.str());
    }
    if (!limit.expired()) continue;
    log_error(
        "nccl: ncclCommDestroy of {} has not returned, {}, so lockstep ends the group without waiting for the call's "
        "thread; see whether nvidia-smi answers",
        core_.own_name(), limit.progress());
    return;
  }
  warn_of(core_, "the end of the communicator", call.error());
}

void NcclShutdown::close() {
  // A thread that brings a cause makes it known first and starts the abort then.
  core_.wait_until(comm::ActiveTimeout(core_.options.abort_patience), [&] {
    MutexLock lock(mutex_);
    return !core_.failure.happened() || abort_started_;
  });
  std::thread abort_thread;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    abort_thread.swap(abort_thread_);
    at_the_end_ = nullptr;
  }
  core_.notify();
  // Joined without the lock: is_closed() of other threads must not wait for the abort.
  if (abort_thread.joinable()) abort_thread.join();
}

bool NcclShutdown::is_closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

}  // namespace lockstep::nccl
