// SPDX-License-Identifier: Apache-2.0
// A call that may never return, made by a thread of its own, so that the caller can stop waiting for it.
//
// Threads: one, the caller's. A call that has not returned when its DetachableCall goes is left behind, with what it
// holds.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"
#include "runtime/base/mutex.h"

namespace lockstep::nccl {

class DetachableCall {
 public:
  // Without a thread for the call: a SystemError, or the constructor makes the call, and nobody can stop waiting.
  enum class NoThread { throws, calls_here };

  // Runs `body` with the device current; also where the device is broken and can't be made current.
  DetachableCall(DeviceId device, std::function<void()> body, NoThread no_thread = NoThread::throws);
  ~DetachableCall();
  DetachableCall(const DetachableCall&) = delete;
  DetachableCall& operator=(const DetachableCall&) = delete;

  // True once it has returned, or thrown.
  bool wait(const Deadline& deadline);
  // The exception of the call, once wait() has returned true; null if it threw nothing.
  std::exception_ptr error() const;

 private:
  struct State {
    void run(DeviceId device, std::function<void()> body);

    Mutex mutex;
    Condition changed;
    bool returned GUARDED_BY(mutex) = false;
    std::exception_ptr error GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

// The calling thread may ask about events while another captures a stream in CUDA's global mode, which forbids it to
// all others, and is broken by the question. For threads of ours, which capture nothing. Where the device is broken, it
// changes nothing.
void keep_out_of_captures(DeviceId device);

// Waits until the device has done all that this process has put into its streams, whoever's they are. CUDA refuses that
// while the program captures a graph, so it then waits for the end of the capture first. Throws DeviceError.
void wait_for_device(DeviceId device);

// Runs `release`, which gives memory back, once the device has done all that may use it: ncclMemFree waits for nothing,
// and nobody knows all streams that an arena was used in. Returns after a while even if the device is not through; then
// it is done later. Any thread. Failure: a line in the log, and the memory is nobody's from then on.
void release_behind_device(DeviceId device, std::function<void()> release) noexcept;

}  // namespace lockstep::nccl
