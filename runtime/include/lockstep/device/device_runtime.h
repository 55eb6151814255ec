// SPDX-License-Identifier: Apache-2.0
// DeviceRuntime is the table of functions of a kind of device, on which streams, events and memory are built. The CPU's
// is built in; there all work is done when the call returns. CUDA's comes with the plug-in liblockstep_cuda.so, loaded
// at the first call that needs it.
//
// A call waits on the host only if its comment says so, and counts the wait in counters().
// Threads: any; each object one at a time. A call leaves the calling thread's current CUDA device as it was. But a
//   thread that had no context yet stays on the device of the call, because returning would create a context on GPU 0.
// Failure: DeviceError with the operation, the device and the library's own words; BackendUnavailable, with the reason
//   and the remedy, if there is no such device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/device.h"
#include "lockstep/device/stream.h"

namespace lockstep {

struct DeviceInfo {
  std::string name;        // "NVIDIA H200"; "CPU" for the CPU
  std::string uuid;        // "GPU-5f2c...", the same in every process and container; empty for the CPU
  std::string pci_bus_id;  // "0000:19:00.0"; empty for the CPU
  std::size_t memory_bytes = 0;
  int major = 0;  // the compute capability
  int minor = 0;
  // The versions of the driver and of the runtime library in the plug-in, as CUDA counts: 13000 is 13.0.
  int driver_version = 0;
  int runtime_version = 0;
};

struct DeviceMemory {
  // The free memory of the device, for all processes.
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  // The memory of this process in allocations that are alive, or whose stream has not reached their end.
  std::size_t used_bytes = 0;
  std::size_t cached_bytes = 0;  // kept for the next allocations
  std::size_t peak_bytes = 0;    // largest used_bytes so far
};

// Counters of this process, since its start. A step should raise none of them.
struct DeviceCounters {
  std::int64_t host_waits = 0;  // times that a call of DeviceRuntime made the host wait for the device
  // The most memory that this process has taken so far, in use or kept: device and pinned.
  std::size_t reserved_bytes = 0;
};

// The result of divide() if the divisor is 0: elements keep their values, or all become 0.
enum class OverZero : std::uint8_t { stays, is_zero };

// The result of first_not_finite() if every number is finite.
inline constexpr std::int64_t kAllFinite = std::numeric_limits<std::int64_t>::max();

// Limits of sum_rows().
inline constexpr std::uint8_t kSkippedRow = 255;
inline constexpr std::size_t kMostSummedRows = 2048;
inline constexpr std::size_t kMostKeptSums = 32;  // at once: enough for 2^31 rows in a binary tree

class LOCKSTEP_API DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;
  // The number of devices that this process sees. 0 is not an error: why_none() then says what is missing and what to
  // do. Before the first call of one of these CUDA is not touched, so the program may still set CUDA_VISIBLE_DEVICES.
  virtual int count() = 0;
  virtual std::string why_none() = 0;
  virtual DeviceInfo info(DeviceId device) = 0;

  // Allocates memory on the device, 256-byte aligned, contents undefined; null for 0 bytes. The last copy of the
  // pointer frees it in the stream's order, after the work that is there, and nobody waits.
  //
  // The memory belongs to the order of `stream`. Before another stream uses it, that stream waits for an event in this
  // one; before the last copy is dropped, this stream waits for an event after that use. A stream of the program's own,
  // which is not a Stream, lives as long as the memory.
  //
  // If the device has no room, the host waits for the stream, and then the call throws DeviceError with the bytes
  // wanted, free, used and kept; Timeout if the stream's kernels have not ended after 10 minutes. InvalidArgument while
  // the stream is being captured.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) = 0;
  // Allocates host memory that the device copies to and from without staging, 256-byte aligned. The last copy of the
  // pointer returns it to a cache; the next owner gets it after the copies that copy() has put into streams are done.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) = 0;
  virtual DeviceMemory memory(DeviceId device) = 0;
  virtual DeviceCounters counters() const = 0;

  // These make streams and events; stream.h has their contracts; get() is the handle, null on the CPU. The device
  // finishes a stream's work even if the stream's last copy is dropped.
  virtual std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) = 0;
  virtual void synchronize(StreamView stream, const Deadline& deadline) = 0;
  virtual std::shared_ptr<void> create_event(DeviceId device, bool timed) = 0;
  virtual void record(void* event, StreamView stream) = 0;
  virtual void block(StreamView stream, void* event) = 0;
  virtual bool reached(void* event) = 0;
  virtual void synchronize(void* event, const Deadline& deadline) = 0;
  virtual std::chrono::nanoseconds elapsed(void* earlier, void* later) = 0;
  // Throws InvalidArgument, which names `operation`, if the stream is being captured into a CUDA graph. record() and
  // block() do so too, because a graph runs later, and other streams would wait for work that was only recorded.
  virtual void check_not_captured(std::string_view operation, StreamView stream) = 0;

  // The place of this memory, allocated by allocate() or not, as `device` sees it: a device, or the host.
  virtual DeviceId place_of(const void* data, DeviceId device) = 0;

  // Copies in the stream's order. Either side may be host memory, which must live until then. Memory of
  // allocate_pinned() spares the host a wait: pageable memory makes CUDA stage it, and counts as a host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  virtual void zero(void* data, std::size_t bytes, StreamView stream) = 0;
  // Multiplies every element by `factor` and divides it by *divisor, a number on the device (null: no division), in the
  // stream's order. Floats are multiplied and divided in float32 or wider, then rounded; integers, whose factor is 1,
  // are divided in 64 bits, towards zero.
  virtual void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
                      StreamView stream) = 0;
  // Finds the first element i that is NaN or infinite, in the stream's order. Sets *first, a number on the device, to 2
  // i for NaN or 2 i + 1 for infinity, if that is less than its value. Integers are finite.
  virtual void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) = 0;
  // Converts the elements of `from` to the dtype of `to`, in the stream's order: float32 or float64 to float16 or
  // bfloat16, rounded, through float32; or float16 or bfloat16 widened. InvalidArgument for other dtypes, and different
  // counts.
  virtual void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) = 0;
  // Sums rows, in the stream's order: element i of `to` becomes the sum of element i of merges.size() rows of its
  // dtype, a float's. Row r begins r * `stride` bytes after `rows`. Row r is added to the newest merges[r] of the kept
  // sums, newest first, each of them the left operand, and the result is kept; after the last row one sum is kept. A
  // row whose number is kSkippedRow is not read. 16-bit floats are added in float32, and rounded once. `to` may be one
  // of the rows. InvalidArgument for more than kMostSummedRows on a device.
  virtual void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                        const BufferView& to, StreamView stream) = 0;
  // Sets *to = value, in the stream's order, without host memory that has to outlive the call.
  virtual void put(std::int64_t* to, std::int64_t value, StreamView stream) = 0;
};

// The runtime of a kind of device; it lives as long as the process. Throws BackendUnavailable if its plug-in can't be
// loaded.
LOCKSTEP_API DeviceRuntime& device_runtime(DeviceKind kind);

// The name of a plug-in's function that returns its DeviceRuntime, the same object on each call.
inline constexpr const char* kPluginDeviceSymbol = "lockstep_plugin_device";

// The packages that the CUDA plug-in needs, for messages of the code that loads it.
inline constexpr const char* kCudaPlugin = "cuda";
inline constexpr const char* kCudaRunsWith = "an NVIDIA driver";
inline constexpr const char* kCudaBuiltWith = "the CUDA toolkit (12.4 or newer, with nvcc)";

}  // namespace lockstep

extern "C" LOCKSTEP_API lockstep::DeviceRuntime* lockstep_plugin_device();
