// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/runtime.h"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/no_device.h"
#include "runtime/device/convert.h"
#include "runtime/device/sum_rows.h"

namespace lockstep::cuda {
namespace {

cudaStream_t handle_of(StreamView stream) { return static_cast<cudaStream_t>(stream.handle); }

DeviceEvent& event_of(void* handle) { return *static_cast<DeviceEvent*>(handle); }

// As CUDA reads it, also where it is set and empty.
std::optional<std::string> visible_devices() {
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// CUDA's answer about the devices; 0 of them is not an error.
cudaError_t count_devices(int& count) {
  count = 0;
  int found = 0;  // left as it is by an error
  const cudaError_t error = cudaGetDeviceCount(&found);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return error;
  }
  count = found;
  return cudaSuccess;
}

int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) cudaGetLastError();
  return version;
}

// "GPU-12345678-1234-1234-1234-123456789abc", as nvidia-smi and CUDA_VISIBLE_DEVICES have it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

CudaRuntime::CudaRuntime()
    : pinned_(std::make_shared<PinnedAllocator>([this](DeviceId device) { return use(device).events->take(false); })) {}

int CudaRuntime::count() {
  if (const int known = count_.load(std::memory_order_relaxed); known > 0) return known;
  int count = 0;
  if (count_devices(count) == cudaSuccess) count_.store(count, std::memory_order_relaxed);
  return count;
}

std::string CudaRuntime::why_none() {
  int count = 0;
  const cudaError_t error = count_devices(count);
  return count > 0 ? "" : why_no_device(error, driver_version(), visible_devices());
}

DeviceInfo CudaRuntime::info(DeviceId device) {
  use(device);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties", device);
  char bus[32] = {};
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device.index), "cudaDeviceGetPCIBusId", device);
  DeviceInfo info;
  info.name = properties.name;
  info.uuid = uuid_text(properties.uuid);
  info.pci_bus_id = bus;
  info.memory_bytes = properties.totalGlobalMem;
  info.major = properties.major;
  info.minor = properties.minor;
  info.driver_version = driver_version();
  info.runtime_version = CUDART_VERSION;
  return info;
}

std::string CudaRuntime::describe(DeviceId device) {
  const DeviceInfo about = info(device);
  return fmt::format("{} ({}, {})", device.str(), about.name, about.uuid);
}

CudaRuntime::Device& CudaRuntime::use(DeviceId device) {
  if (device.kind != DeviceKind::cuda) {
    throw InvalidArgument(fmt::format(
        "device {} was given to the CUDA runtime, which only knows GPUs; give it a device cuda:INDEX", device.str()));
  }
  const int devices = count();
  if (devices == 0) throw BackendUnavailable(fmt::format("device {}: {}", device.str(), why_none()));
  if (device.index < 0 || device.index >= devices) {
    const auto visible = visible_devices();
    throw BackendUnavailable(fmt::format(
        "device {}: this process sees {} GPU{}{}; use an index below {}", device.str(), devices,
        devices == 1 ? "" : "s", visible ? fmt::format(" (CUDA_VISIBLE_DEVICES='{}')", *visible) : "", devices));
  }
  MutexLock lock(mutex_);
  auto& entry = devices_[device];
  if (entry == nullptr) entry = std::make_unique<Device>(device, [this, device] { return describe(device); });
  return *entry;
}

std::shared_ptr<void> CudaRuntime::allocate(std::size_t bytes, StreamView stream) {
  return use(stream.device).memory->allocate(bytes, handle_of(stream));
}

std::shared_ptr<void> CudaRuntime::allocate_pinned(std::size_t bytes, DeviceId device) {
  use(device);
  return pinned_->allocate(bytes, device);
}

DeviceMemory CudaRuntime::memory(DeviceId device) { return use(device).memory->memory(); }

DeviceCounters CudaRuntime::counters() const {
  DeviceCounters counters{.host_waits = host_waits_.load(std::memory_order_relaxed),
                          .reserved_bytes = pinned_->reserved_bytes()};
  // Not under the lock: an allocator that refuses asks for the device's name, and then wants it.
  std::vector<std::shared_ptr<DeviceAllocator>> allocators;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, device] : devices_) allocators.push_back(device->memory);
  }
  for (const auto& allocator : allocators) {
    const DeviceCounters own = allocator->counters();
    counters.host_waits += own.host_waits;
    counters.reserved_bytes += own.reserved_bytes;
  }
  return counters;
}

std::shared_ptr<void> CudaRuntime::create_stream(DeviceId device, Stream::Priority priority) {
  Device& own = use(device);
  {
    // std::call_once may hang under ThreadSanitizer once a call has thrown.
    MutexLock lock(own.load_mutex);
    if (!own.kernels_are_loaded) {
      const CurrentDevice current(device);
      check(load_kernels(), "loading the kernels", device);
      own.kernels_are_loaded = true;
    }
  }
  return own.streams->create(priority);
}

void CudaRuntime::wait(const std::function<bool()>& done, DeviceId device, const char* what, const Deadline& deadline) {
  if (done()) return;
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  if (poll(done, deadline)) return;
  throw Timeout(fmt::format(
      "the work in {} of {} has not ended, {}: a kernel runs that long or forever, or a collective waits for a "
      "rank that is gone; look at the other ranks' output, and at the program's kernels",
      what, device.str(), deadline.progress()));
}

void CudaRuntime::synchronize(StreamView stream, const Deadline& deadline) {
  use(stream.device);
  const CurrentDevice current(stream.device);
  cuda::check_not_captured(handle_of(stream), "the wait for a stream", stream.device);
  const auto idle = [&] { return is_idle(handle_of(stream), stream.device); };
  wait(idle, stream.device, stream.handle == nullptr ? "the default stream" : "a stream", deadline);
}

std::shared_ptr<void> CudaRuntime::create_event(DeviceId device, bool timed) { return use(device).events->take(timed); }

void CudaRuntime::check_not_captured(std::string_view operation, StreamView stream) {
  const CurrentDevice current(stream.device);
  cuda::check_not_captured(handle_of(stream), operation, stream.device);
}

void CudaRuntime::record(void* event, StreamView stream) { cuda::record(event_of(event), handle_of(stream)); }

void CudaRuntime::block(StreamView stream, void* event) {
  const CurrentDevice current(stream.device);
  cuda::check_not_captured(handle_of(stream), "waiting for an event", stream.device);
  if (!event_of(event).is_recorded) return;
  check(cudaStreamWaitEvent(handle_of(stream), event_of(event).event, 0), "cudaStreamWaitEvent", stream.device);
}

bool CudaRuntime::reached(void* event) { return cuda::reached(event_of(event)); }

void CudaRuntime::synchronize(void* event, const Deadline& deadline) {
  wait([&] { return reached(event); }, event_of(event).device, "the stream before an event", deadline);
}

std::chrono::nanoseconds CudaRuntime::elapsed(void* earlier, void* later) {
  const DeviceId device = event_of(later).device;
  const CurrentDevice current(device);
  float milliseconds = 0;
  const bool are_recorded = event_of(earlier).is_recorded && event_of(later).is_recorded;
  const cudaError_t error = are_recorded
                                ? cudaEventElapsedTime(&milliseconds, event_of(earlier).event, event_of(later).event)
                                : cudaErrorInvalidResourceHandle;
  if (error == cudaErrorInvalidResourceHandle || error == cudaErrorNotReady) {
    cudaGetLastError();
    throw InvalidArgument(
        fmt::format("event: the program asked for the time between two events, but {}; make both events with `timed`, "
                    "record both on one device, and ask when both were reached",
                    error == cudaErrorNotReady ? "one is not reached yet" : "one is not timed or was never recorded"));
  }
  check(error, "cudaEventElapsedTime", device);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double, std::milli>(milliseconds));
}

DeviceId CudaRuntime::place_of(const void* data, DeviceId device) {
  use(device);
  const CurrentDevice current(device);
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes", device);
  const bool is_devices = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return is_devices ? DeviceId{DeviceKind::cuda, attributes.device} : DeviceId{};
}

bool CudaRuntime::is_pageable(const void* data, StreamView stream) {
  if (pinned_->holds(data)) return false;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes", stream.device);
  return attributes.type == cudaMemoryTypeUnregistered;
}

void CudaRuntime::copy(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  const CurrentDevice current(stream.device);
  // Pinned memory of ours has an event behind each copy.
  if (pinned_->holds(to) || pinned_->holds(from)) {
    cuda::check_not_captured(handle_of(stream), "a copy of pinned memory", stream.device);
  }
  if (is_pageable(to, stream) || is_pageable(from, stream)) host_waits_.fetch_add(1, std::memory_order_relaxed);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)),
        fmt::format("cudaMemcpyAsync of {} bytes", bytes), stream.device);
  for (const void* side : {static_cast<const void*>(to), from}) pinned_->copied(side, stream.device, handle_of(stream));
}

void CudaRuntime::zero(void* data, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  const CurrentDevice current(stream.device);
  check(cudaMemsetAsync(data, 0, bytes, handle_of(stream)), fmt::format("cudaMemsetAsync of {} bytes", bytes),
        stream.device);
}

void CudaRuntime::divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
                         StreamView stream) {
  const CurrentDevice current(stream.device);
  check(launch_divide(buffer.data, buffer.count, buffer.dtype, factor, divisor, over_zero, handle_of(stream)),
        fmt::format("the kernel that divides {} x {}", buffer.count, name_of(buffer.dtype)), stream.device);
}

void CudaRuntime::first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) {
  const CurrentDevice current(stream.device);
  check(launch_first_not_finite(buffer.data, buffer.count, buffer.dtype, first, handle_of(stream)),
        fmt::format("the kernel that looks for NaN in {} x {}", buffer.count, name_of(buffer.dtype)), stream.device);
}

void CudaRuntime::convert(const ConstBufferView& from, const BufferView& to, StreamView stream) {
  check_convertible(from, to);
  const CurrentDevice current(stream.device);
  check(launch_convert(from.data, from.dtype, to.data, to.dtype, to.count, handle_of(stream)),
        fmt::format("the kernel that converts {} x {}", from.count, name_of(from.dtype)), stream.device);
}

void CudaRuntime::sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                           const BufferView& to, StreamView stream) {
  check_summable(merges, to.dtype);
  if (merges.size() > kMostSummedRows) {
    throw InvalidArgument(
        fmt::format("sum_rows of {} rows on {}: a kernel takes at most {} rows; use fewer ranks, or a communication "
                    "hook that leaves the sum to the group",
                    merges.size(), stream.device.str(), kMostSummedRows));
  }
  const CurrentDevice current(stream.device);
  check(launch_sum_rows(rows, stride, merges, to.data, to.count, to.dtype, handle_of(stream)),
        fmt::format("the kernel that adds {} rows of {} x {}", merges.size(), to.count, name_of(to.dtype)),
        stream.device);
}

void CudaRuntime::put(std::int64_t* to, std::int64_t value, StreamView stream) {
  const CurrentDevice current(stream.device);
  check(launch_put(to, value, handle_of(stream)), "the kernel that puts a number", stream.device);
}

}  // namespace lockstep::cuda
