// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/torch_stream.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cstdint>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"

namespace lockstep::libtorch {
namespace {

// A function of LibTorch's stable C interface; only a LibTorch for GPUs has it. One build of lockstep works with either
// LibTorch.
using GetCurrentStream = std::int32_t (*)(std::int32_t device_index, void** stream);
constexpr const char* kGetCurrentStream = "aoti_torch_get_current_cuda_stream";

GetCurrentStream get_current_stream() {
  static const auto function = reinterpret_cast<GetCurrentStream>(::dlsym(RTLD_DEFAULT, kGetCurrentStream));
  if (function == nullptr) {
    throw BackendUnavailable(
        fmt::format("LibTorch {} has no function {}, so lockstep can't find the current CUDA stream; install a "
                    "LibTorch for GPUs, 2.6 or newer",
                    TORCH_VERSION, kGetCurrentStream));
  }
  return function;
}

}  // namespace

at::Device device_of(const ProcessGroup& group) {
  const DeviceId device = group.device();
  if (device.kind == DeviceKind::cpu) return at::Device(at::kCPU);
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
}

DeviceId device_id_of(const at::Device& device) {
  if (device.is_cpu()) return {};
  if (device.is_cuda()) {
    const auto index =
        device.has_index() ? device.index() : c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index();
    return {DeviceKind::cuda, index};
  }
  throw InvalidArgument(
      fmt::format("a tensor is on {}; lockstep computes with tensors on the CPU and on CUDA: move it to one of these",
                  device.str()));
}

bool is_at_home(const ProcessGroup& group, const at::Device& device) {
  return (device.is_cpu() || device.is_cuda()) && device_id_of(device) == group.device();
}

StreamView current_stream(DeviceId device) {
  StreamView stream{device, nullptr};
  if (device.kind == DeviceKind::cpu) return stream;
  if (const std::int32_t error = get_current_stream()(device.index, &stream.handle); error != 0) {
    throw DeviceError(fmt::format("{} of {} failed with {}; look at the error that LibTorch has written above",
                                  kGetCurrentStream, device.str(), error));
  }
  return stream;
}

void put_in_order(StreamView earlier, StreamView later) {
  if (earlier == later) return;
  Event event(earlier.device);
  event.record(earlier);
  event.block(later);
}

OnStream::OnStream(ProcessGroup& group, StreamView stream) : group_(group), before_(group.stream()), stream_(stream) {
  if (stream_ != before_) group_.set_stream(stream_);
}

OnStream::~OnStream() {
  if (stream_ == before_) return;
  try {
    group_.set_stream(before_);
  } catch (const std::exception& error) {
    log_error(
        "LibTorch: the group could not return to its own stream after this call, and stays in the call's stream: {}; "
        "look whether the GPU still works (nvidia-smi, dmesg)",
        error.what());
  }
}

}  // namespace lockstep::libtorch
