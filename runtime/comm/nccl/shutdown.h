// SPDX-License-Identifier: Apache-2.0
// How a group over NCCL ends: in order, or by an abort once there is a cause.
//
// In order: all say goodbye; the device does what it still has to do, the program's kernels too, since NCCL's own end
// waits for them without a deadline; then NCCL ends. Each rank gives the others the group's timeout for that.
//
// After a failure a thread takes the communicator from whoever is in it, aborts it in a helper thread, and ends the
// process (job/exit_code.h) if that has not returned Options::abort_patience after the cause: a kernel that never ends
// can't be ended otherwise, and the process is lost to its job anyway. An abort comes back behind what the program
// computes for the collectives that were launched, so this time begins when that has ended (compute_ahead.h), for which
// it has the group's timeout.
//
// Threads: any, but where a function says otherwise. No call of NCCL's or the driver's is made under its lock.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "runtime/comm/nccl/group_core.h"
#include "runtime/comm/nccl/group_scope.h"
#include "runtime/comm/nccl/watchdog.h"

namespace lockstep::nccl {

// The group is to end, and what the program has put on the device has not ended within `limit`.
[[noreturn]] void fail_for_unfinished_kernels(GroupCore& core, const Deadline& limit);

// Waits until NCCL is through with what was called last. `what` and `remedy` go into the message of a timeout. A thread
// that has the device current.
void await_nccl(GroupCore& core, const Deadline& deadline, const char* what, const char* remedy);

class NcclShutdown {
 public:
  // All outlive it.
  NcclShutdown(GroupCore& core, GroupScope& scope, Watchdog& watchdog)
      : core_(core), scope_(scope), watchdog_(watchdog) {}

  // Called before the communicator ends in order; not if it is aborted.
  void at_the_end(std::function<void(const LaunchContext&)> body);

  // The group has failed: starts the abort, unless the group is closed. Once.
  void start_abort();
  // Aborts on this thread.
  void abort_now();
  // The orderly end of a group whose program has started all that it will. Throws the cause if the group fails
  // meanwhile: the communicator is the abort's then. A thread that has the device current.
  void end();
  // The end is over, whichever it was: waits for an abort that has been started, and refuses later ones.
  void close();
  bool is_closed() const;

  // Waits, for a moment, until the device touches no memory of a work any more.
  void await_release() const;
  // An abort has not returned, and the process continues: the device may use the group's memory for ever.
  bool device_is_stuck() const { return device_is_stuck_.load(std::memory_order_acquire); }

 private:
  // Aborts what there is, in a thread of its own, then waits for the device, for a while.
  void abort_and_drain(comm::ActiveTimeout patience);
  // False if it did not return in time: then the process has ended, or continues with a stuck device.
  bool abort(comm::ActiveTimeout patience);
  void drain();
  void end_the_process(const char* what);
  bool wait_for_goodbyes();
  void wait_for_device();
  void destroy();
  void release();

  GroupCore& core_;
  GroupScope& scope_;
  Watchdog& watchdog_;
  std::atomic<bool> device_is_stuck_{false};
  std::atomic<bool> released_{false};
  mutable Mutex mutex_;
  std::thread abort_thread_ GUARDED_BY(mutex_);
  std::function<void(const LaunchContext&)> at_the_end_ GUARDED_BY(mutex_);
  bool abort_started_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::nccl
