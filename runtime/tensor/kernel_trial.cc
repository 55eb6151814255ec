// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/kernel_trial.h"

#include <memory>
#include <vector>

#include "lockstep/device/device_runtime.h"
#include "runtime/tensor/checked_kernels.h"
#include "runtime/tensor/every_operation.h"

namespace lockstep {
namespace {

class DeviceArrays {
 public:
  explicit DeviceArrays(StreamView stream) : stream_(stream) {}

  template <typename T>
  const T* in(const std::vector<T>& values) {
    return inout(values);
  }
  template <typename T>
  T* inout(const std::vector<T>& values) {
    DeviceRuntime& runtime = device_runtime(stream_.device.kind);
    memory_.push_back(runtime.allocate(values.size() * sizeof(T), stream_));
    runtime.copy(memory_.back().get(), values.data(), values.size() * sizeof(T), stream_);
    return static_cast<T*>(memory_.back().get());
  }
  template <typename T>
  T* out(std::int64_t count) {
    return inout(std::vector<T>(static_cast<std::size_t>(count)));
  }

 private:
  StreamView stream_;
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace

KernelTrial try_kernels(DeviceId device, const Deadline& deadline) {
  Kernels& own = kernels(device);
  const auto checked = checked_kernels(own, cpu_kernels(), products_may_differ(Environment::of_process()));
  DeviceArrays arrays(own.stream());
  const auto calls = calls_of_every_operation(*checked, arrays);
  KernelTrial trial{.operations = static_cast<int>(calls.size())};
  for (const auto& call : calls) {
    if (deadline.expired()) break;
    call();
    ++trial.compared;
  }
  return trial;
}

}  // namespace lockstep
