// SPDX-License-Identifier: Apache-2.0
// Watches a group's calls: notices what the device has finished, and fails the group for what will not end: a timeout,
// an error that NCCL or the launch thread reports, a rank that left.
//
// One thread of the group's own, which may ask a driver that hangs: nobody waits for it without a deadline, and the
// abort is another's (shutdown.h). It ends with the group's failure, or when it is told to.
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "runtime/comm/nccl/detachable_call.h"
#include "runtime/comm/nccl/group_core.h"
#include "runtime/comm/nccl/group_scope.h"

namespace lockstep::nccl {

class Watchdog {
 public:
  // Both outlive it.
  Watchdog(GroupCore& core, GroupScope& scope) : core_(core), scope_(scope) {}

  // Throws SystemError if there is no thread for it.
  void start();
  // Ends the thread; one that the driver holds is left behind after `patience`.
  void stop(comm::ActiveTimeout patience);
  // Something has changed that it looks at.
  void notify() { changed_.notify(); }

  // Notices what the device has finished. Any thread.
  void retire();
  // The launch thread's: a call of the group failed with this. Returns at once; the group fails soon.
  void report(std::exception_ptr error);
  // The group is about to end: from now on the program's own kernels, too, have the group's timeout to end.
  void begin_end();

 private:
  void run();
  // False once there is nothing left to watch.
  bool look();
  void look_at_front();
  void fail_for(const CallFailed& error);
  bool is_ending() const;

  GroupCore& core_;
  GroupScope& scope_;
  EventCount changed_;
  mutable Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::optional<DetachableCall> thread_;

  // The thread's.
  Deadline next_look_ = Deadline::after({});
  std::weak_ptr<PendingCall> front_;  // what the device is in, and until when; no address, which a later one may have
  bool front_computed_ = false;
  std::optional<comm::ActiveTimeout> front_patience_;
  std::optional<Deadline> front_limit_;  // the same, as an error says it
};

}  // namespace lockstep::nccl
