// What a kind of device offers: the table behind streams, events and memory. The CPU's is built in, where everything is
// done when the call returns; CUDA's comes with the plug-in liblockstep_cuda.so, loaded at the first call that needs
// it.
//
// No call waits on the host unless it says so. Threads: any. Failure: DeviceError with the operation, the device and
// the library's own words; BackendUnavailable where there is no such device, with the reason and the remedy.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/deadline.h"
#include "runtime/device/buffer_view.h"
#include "runtime/device/device.h"
#include "runtime/device/stream.h"

namespace lockstep {

struct DeviceInfo {
  std::string name;        // "NVIDIA H200"
  std::string uuid;        // "GPU-5f2c...": the same in every process and container
  std::string pci_bus_id;  // "0000:19:00.0"
  std::size_t memory_bytes = 0;
  int major = 0;  // compute capability
  int minor = 0;
};

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;
  // Devices that this process sees; 0 is no error, why_none() then says what is missing and what to do.
  virtual int count() const = 0;
  virtual std::string why_none() const = 0;
  virtual DeviceInfo info(DeviceId device) const = 0;

  // Memory on the device, 256-byte aligned, contents undefined; goes back to the allocator's cache with the last copy,
  // for use in the order of `stream` (what another stream still does with it has to be waited for by then).
  virtual std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) = 0;
  // Host memory that the device copies to and from without staging.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) = 0;

  virtual std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) = 0;
  virtual void synchronize(StreamView stream, const Deadline& deadline) = 0;
  virtual std::shared_ptr<void> create_event(DeviceId device, bool timed) = 0;
  virtual void record(void* event, StreamView stream) = 0;
  virtual void block(StreamView stream, void* event) = 0;
  virtual bool reached(void* event) = 0;
  virtual void synchronize(void* event, const Deadline& deadline) = 0;
  virtual std::chrono::nanoseconds elapsed(void* earlier, void* later) = 0;

  // In the stream's order. Either side may be host memory, pinned if the host is not to wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  virtual void zero(void* data, std::size_t bytes, StreamView stream) = 0;
  // In the stream's order: every element over *divisor, which lies on the device; over 0, all become 0.
  // float32, float64, float16, bfloat16; computed in float32 or wider.
  virtual void divide(const BufferView& buffer, const std::int64_t* divisor, StreamView stream) = 0;
  // In the stream's order: *to = value, without host memory that has to live on.
  virtual void put(std::int64_t* to, std::int64_t value, StreamView stream) = 0;
};

// The runtime of a kind. Throws BackendUnavailable if its plug-in can't be loaded. Lives as long as the process.
DeviceRuntime& device_runtime(DeviceKind kind);

// What a plug-in that brings a device has to have. Called once.
inline constexpr const char* kPluginDeviceSymbol = "lockstep_plugin_device";

}  // namespace lockstep

extern "C" lockstep::DeviceRuntime* lockstep_plugin_device();
