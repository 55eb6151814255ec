// SPDX-License-Identifier: Apache-2.0
// The thread that makes the launching calls of NCCL for all groups of one device in this process, in the order in which
// the program starts the calls, whatever group they are of.
//
// Kernels of two communicators may wait for each other's place on the device. If one rank launches them in another
// order than its peers, each may hold the place that the other needs, for ever. So ranks whose programs start things
// in one order also launch in one order: a call is launched when NCCL has launched the one before it. A call that must
// wait for other ranks (the first of its kind, or with its peer, for which NCCL connects; each collective where they
// are checked) therefore holds those up that the program started after it, also of other groups. A group that has
// failed or ended holds up none: its calls leave the queue.
//
// The order of launches is not yet the order on the device: each group's stream waits for its own computation first.
//
// The thread waits for no other rank and not for the store. It waits for the device only where a stream's queue is
// full, and copies host buffers into pinned memory. Threads: any.
#pragma once

#include <memory>

#include "runtime/comm/nccl/detachable_call.h"
#include "runtime/comm/nccl/pending_call.h"

namespace lockstep::nccl {

// One group, as the launch thread sees it.
class LaunchClient {
 public:
  enum class Progress {
    launched,  // the call's kernels are in the stream
    in_nccl,   // NCCL is about to launch it
    waits,     // for other ranks, or for another thread that calls NCCL
    gone,      // the group has failed
  };
  // Brings the group's next call on its way, without blocking; throws nothing.
  virtual Progress advance(PendingCall& call) noexcept = 0;

 protected:
  ~LaunchClient() = default;
};

class LaunchThread {
 public:
  // That of the device, which lives as long as somebody holds it. Throws SystemError if there is no thread for it.
  static std::shared_ptr<LaunchThread> of(DeviceId device);
  // Leaves a thread behind that a call of the driver's holds.
  ~LaunchThread();
  LaunchThread(const LaunchThread&) = delete;
  LaunchThread& operator=(const LaunchThread&) = delete;

  void enqueue(std::shared_ptr<LaunchClient> group, std::shared_ptr<PendingCall> call);
  // Takes the group's calls out of the queue. One may still be advanced meanwhile.
  void remove(const LaunchClient& group);
  // Something has changed that a front call may have waited for.
  void notify();

 private:
  struct State;
  explicit LaunchThread(DeviceId device);

  const std::shared_ptr<State> state_;
  DetachableCall thread_;
};

}  // namespace lockstep::nccl
