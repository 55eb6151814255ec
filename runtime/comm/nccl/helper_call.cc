#include "runtime/comm/nccl/helper_call.h"

#include <cuda_runtime_api.h>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/patience.h"
#include "runtime/cuda/check.h"

namespace lockstep::nccl {
namespace {

constexpr std::chrono::seconds kReleasePatience{5};
// Between two looks whether the program still captures a graph.
constexpr std::chrono::milliseconds kCaptureLook{20};

}  // namespace

HelperCall::HelperCall(DeviceId device, std::function<void()> body)
    : thread_(start_quiet_thread([state = state_, device, body = std::move(body)]() mutable {
        std::exception_ptr error;
        try {
          // A broken device may say so here already. What is to be done, an abort above all, is to be done all the
          // more.
          cuda::check_quietly(::cudaSetDevice(device.index), "cudaSetDevice", device);
          keep_out_of_captures(device);
          body();
        } catch (...) {
          error = std::current_exception();
        }
        body = nullptr;  // what it holds goes before it counts as returned
        MutexLock lock(state->mutex);
        state->error = error;
        state->returned = true;
        state->changed.notify_all();
      })) {}

HelperCall::~HelperCall() {
  bool returned = false;
  {
    MutexLock lock(state_->mutex);
    returned = state_->returned;
  }
  if (returned) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool HelperCall::wait(const Deadline& deadline) {
  MutexLock lock(state_->mutex);
  while (!state_->returned && state_->changed.wait_until(state_->mutex, deadline)) {
  }
  return state_->returned;
}

std::exception_ptr HelperCall::error() const {
  MutexLock lock(state_->mutex);
  return state_->error;
}

FormerDevice::FormerDevice() {
  if (::cudaGetDevice(&index_) == cudaSuccess) return;
  ::cudaGetLastError();
  index_ = -1;
}

FormerDevice::~FormerDevice() {
  if (index_ >= 0) cuda::check_quietly(::cudaSetDevice(index_), "cudaSetDevice back", {DeviceKind::cuda, index_});
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
    const auto body = [device, release = std::move(release)] {
      wait_for_device(device);
      release();
    };
    std::optional<HelperCall> call;
    try {
      call.emplace(device, body);
    } catch (const SystemError&) {
      // No thread: then this one waits for as long as it takes.
      const FormerDevice former;
      cuda::check_quietly(::cudaSetDevice(device.index), "cudaSetDevice", device);
      return body();
    }
    comm::Patience patience(kReleasePatience);
    while (!call->wait(patience.next())) {
      if (!patience.over()) continue;
      log_info("nccl: memory on {} goes back when what runs there has ended", device.str());
      return;
    }
    if (const auto error = call->error()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    log_warn("nccl: memory on {} is not given back: {}", device.str(), error.what());
  }
}

}  // namespace lockstep::nccl
