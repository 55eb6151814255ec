// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/detachable_call.h"

#include <cuda_runtime_api.h>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/cuda/check.h"

namespace lockstep::nccl {
namespace {

constexpr std::chrono::seconds kReleasePatience{5};
// Between two looks whether the program still captures a graph.
constexpr std::chrono::milliseconds kCaptureLook{20};

// The calling thread's current device is as it was at the end.
class FormerDevice {
 public:
  FormerDevice() {
    if (::cudaGetDevice(&index_) == cudaSuccess) return;
    ::cudaGetLastError();
    index_ = -1;
  }
  ~FormerDevice() {
    if (index_ >= 0) cuda::check_quietly(::cudaSetDevice(index_), "cudaSetDevice back", {DeviceKind::cuda, index_});
  }
  FormerDevice(const FormerDevice&) = delete;
  FormerDevice& operator=(const FormerDevice&) = delete;

 private:
  int index_ = -1;  // unknown
};

}  // namespace

void DetachableCall::State::run(DeviceId device, std::function<void()> body) {
  std::exception_ptr failed;
  try {
    // A broken device may say so here already. The body, an abort above all, is needed all the more then.
    cuda::check_quietly(::cudaSetDevice(device.index), "cudaSetDevice", device);
    body();
  } catch (...) {
    failed = std::current_exception();
  }
  body = nullptr;  // what it holds goes before it counts as returned
  MutexLock lock(mutex);
  error = failed;
  returned = true;
  changed.notify_all();
}

DetachableCall::DetachableCall(DeviceId device, std::function<void()> body, NoThread no_thread) {
  try {
    thread_ = start_quiet_thread(
        [state = state_, device, body]() mutable {
          keep_out_of_captures(device);
          state->run(device, std::move(body));
        },
        "lockstep-nccl");
  } catch (const SystemError&) {
    if (no_thread == NoThread::throws) throw;
    const FormerDevice former;
    state_->run(device, std::move(body));
  }
}

DetachableCall::~DetachableCall() {
  bool returned = false;
  {
    MutexLock lock(state_->mutex);
    returned = state_->returned;
  }
  if (!thread_.joinable()) return;
  if (returned) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool DetachableCall::wait(const Deadline& deadline) {
  MutexLock lock(state_->mutex);
  while (!state_->returned && state_->changed.wait_until(state_->mutex, deadline)) {
  }
  return state_->returned;
}

std::exception_ptr DetachableCall::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

void keep_out_of_captures(DeviceId device) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cuda::check_quietly(::cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode", device);
}

void wait_for_device(DeviceId device) {
  for (;;) {
    const cudaError_t error = ::cudaDeviceSynchronize();
    if (error != cudaErrorStreamCaptureUnsupported) return cuda::check(error, "cudaDeviceSynchronize", device);
    ::cudaGetLastError();
    std::this_thread::sleep_for(kCaptureLook);
  }
}

void release_behind_device(DeviceId device, std::function<void()> release) noexcept {
  try {
    DetachableCall call(
        device,
        [device, release = std::move(release)] {
          wait_for_device(device);
          release();
        },
        DetachableCall::NoThread::calls_here);
    comm::ActiveTimeout patience(kReleasePatience);
    while (!call.wait(patience.next())) {
      if (!patience.over()) continue;
      log_info(
          "nccl: kernels on {} still run, so lockstep frees the group's memory on this GPU only when these kernels "
          "have ended",
          device.str());
      return;
    }
    if (const auto error = call.error()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    log_warn(
        "nccl: this process could not free memory on {}, and keeps the memory: {}; end the process to free the memory",
        device.str(), error.what());
  }
}

}  // namespace lockstep::nccl
