// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/kernel_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/tensor/every_operation.h"

namespace lockstep {
namespace {

// The part of an array's largest number by which another order of a sum, or another formula, may change a number of it.
constexpr double kClose = 1e-4;
constexpr double kCloseTf32 = 1e-2;  // where LOCKSTEP_ALLOW_TF32 rounds what products read

// The first element of `got` that is not close to that of `wanted`; empty if there is none.
template <typename T>
std::string difference(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted, double tolerance) {
  const std::size_t count = got.size() / sizeof(T);
  std::vector<T> a(count), b(count);
  std::memcpy(a.data(), got.data(), got.size());
  std::memcpy(b.data(), wanted.data(), wanted.size());
  double largest = 0;
  for (const T value : b) {
    if (std::isfinite(static_cast<double>(value))) largest = std::max(largest, std::abs(static_cast<double>(value)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= tolerance * largest) continue;
    return fmt::format("element {} of {}: {} instead of {}", i, count, a[i], b[i]);
  }
  return {};
}

// Memory of one device for the calls (every_operation.h).
class TrialArrays {
 public:
  explicit TrialArrays(StreamView stream) : stream_(stream), runtime_(device_runtime(stream.device.kind)) {}

  template <typename T>
  const T* in(const std::vector<T>& values) {
    return inout(values);
  }
  template <typename T>
  T* inout(const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    arrays_.push_back({runtime_.allocate(bytes, stream_), bytes, difference<T>});
    runtime_.copy(arrays_.back().memory.get(), values.data(), bytes, stream_);
    return static_cast<T*>(arrays_.back().memory.get());
  }
  template <typename T>
  T* out(std::int64_t count) {
    return inout(std::vector<T>(static_cast<std::size_t>(count)));
  }

  // How this device's arrays differ from the other's, which the same calls were made for; empty if they don't.
  std::string differ_from(const TrialArrays& other, double tolerance, const Deadline& deadline) const {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const std::string found = arrays_[i].difference(fetch(i, deadline), other.fetch(i, deadline), tolerance);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  struct Array {
    std::shared_ptr<void> memory;
    std::size_t bytes;
    std::string (*difference)(const std::vector<std::byte>&, const std::vector<std::byte>&, double);
  };

  std::vector<std::byte> fetch(std::size_t index, const Deadline& deadline) const {
    std::vector<std::byte> bytes(arrays_[index].bytes);
    runtime_.copy(bytes.data(), arrays_[index].memory.get(), bytes.size(), stream_);
    runtime_.synchronize(stream_, deadline);
    return bytes;
  }

  StreamView stream_;
  DeviceRuntime& runtime_;
  std::vector<Array> arrays_;
};

}  // namespace

KernelTrial try_kernels(DeviceId device, const Deadline& deadline) {
  constexpr std::chrono::minutes kPatience{10};
  Kernels& own = kernels(device);
  const bool is_coarse = Environment::of_process().get("LOCKSTEP_ALLOW_TF32") == "1";
  TrialArrays arrays(own.stream()), wanted(cpu_kernels().stream());
  const auto calls = calls_of_every_operation(own, arrays);
  const auto on_cpu = calls_of_every_operation(cpu_kernels(), wanted);
  KernelTrial trial{.operations = static_cast<int>(calls.size())};
  for (std::size_t i = 0; i < calls.size() && !deadline.expired(); ++i) {
    calls[i].run();
    on_cpu[i].run();
    const std::string found = arrays.differ_from(wanted, is_coarse ? kCloseTf32 : kClose, Deadline::after(kPatience));
    if (!found.empty()) {
      throw Error(fmt::format(
          "kernel {} on {} differs from the CPU's in {}; report this line, with the output of 'lockstep doctor'",
          calls[i].name, device.str(), found));
    }
    ++trial.compared;
  }
  return trial;
}

}  // namespace lockstep
