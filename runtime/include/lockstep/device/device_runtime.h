// SPDX-License-Identifier: Apache-2.0
// The functions of a kind of device: the table behind streams, events and memory. The CPU's is built in, where
// everything is done when the call returns; CUDA's comes with the plug-in liblockstep_cuda.so, loaded at the first call
// that needs it.
//
// No call waits on the host unless it says so; what has to wait says how often in counters(). Threads: any, each object
// one at a time. The calling thread's current CUDA device is as it was when a call returns; a thread that had no
// context yet stays on the device of the call, since the way back would bring up one on GPU 0. Failure: DeviceError
// with the operation, the device and the library's own words; BackendUnavailable where there is no such device, with
// the reason and the remedy.
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
  std::string name;        // "NVIDIA H200"; of the CPU "CPU"
  std::string uuid;        // "GPU-5f2c...": the same in every process and container; of the CPU empty
  std::string pci_bus_id;  // "0000:19:00.0"; of the CPU empty
  std::size_t memory_bytes = 0;
  int major = 0;  // compute capability
  int minor = 0;
  // Versions of the driver and of the runtime library inside the plug-in, as CUDA counts: 13000 is 13.0.
  int driver_version = 0;
  int runtime_version = 0;
};

struct DeviceMemory {
  std::size_t free_bytes = 0;  // on the device, of all processes
  std::size_t total_bytes = 0;
  std::size_t used_bytes = 0;    // of this process: in allocations that live, or whose stream has not come to their end
  std::size_t cached_bytes = 0;  // kept for the next ones
  std::size_t peak_bytes = 0;    // largest used_bytes so far
};

// Counters of this process, since its start. A step should raise none of them.
struct DeviceCounters {
  std::int64_t host_waits = 0;     // times that a call of DeviceRuntime made the host wait for the device
  std::size_t reserved_bytes = 0;  // most memory that this process has taken so far, in use or kept: device and pinned
};

// The result of divide() where the divisor is 0: elements stay as they are, or all become 0.
enum class OverZero : std::uint8_t { stays, is_zero };

// The result of first_not_finite() where every number is finite.
inline constexpr std::int64_t kAllFinite = std::numeric_limits<std::int64_t>::max();

// Limits of sum_rows().
inline constexpr std::uint8_t kSkippedRow = 255;
inline constexpr std::size_t kMostSummedRows = 2048;
inline constexpr std::size_t kMostKeptSums = 32;  // at once: of 2^31 rows in a binary tree

class LOCKSTEP_API DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;
  // Devices that this process sees; 0 is not an error, why_none() then says what is missing and what to do. Until the
  // first call of one of these, CUDA is not touched: CUDA_VISIBLE_DEVICES may still be set by the program.
  virtual int count() = 0;
  virtual std::string why_none() = 0;
  virtual DeviceInfo info(DeviceId device) = 0;

  // Memory on the device, 256-byte aligned, contents undefined. It belongs to the order of `stream`: what is done with
  // it in another stream comes behind an event in this one, and before its last copy goes this stream waits for an
  // event behind that. The last copy frees it in the stream's order, behind the work that is there: nobody waits.
  // 0 bytes: null. Where the device has no room the host waits for the stream, then DeviceError with the bytes wanted,
  // free, used and kept; Timeout if the stream's kernels have not ended after 10 minutes; InvalidArgument while the
  // stream is being captured. A stream of the program's own, which is not a Stream, has to live as long as the memory.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) = 0;
  // Host memory that the device copies to and from without staging, 256-byte aligned. With the last copy it goes back
  // to a cache, and to the next owner once the copies are done that copy() has put into streams.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) = 0;
  virtual DeviceMemory memory(DeviceId device) = 0;
  virtual DeviceCounters counters() const = 0;

  // stream.h has what these do; get() is the handle. A stream's work is done, on the device's own time, also when the
  // stream's last copy has gone. Null for the CPU's.
  virtual std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) = 0;
  virtual void synchronize(StreamView stream, const Deadline& deadline) = 0;
  virtual std::shared_ptr<void> create_event(DeviceId device, bool timed) = 0;
  virtual void record(void* event, StreamView stream) = 0;
  virtual void block(StreamView stream, void* event) = 0;
  virtual bool reached(void* event) = 0;
  virtual void synchronize(void* event, const Deadline& deadline) = 0;
  virtual std::chrono::nanoseconds elapsed(void* earlier, void* later) = 0;
  // Throws InvalidArgument that names `operation` where the stream is being captured into a CUDA graph: record() and
  // block() do so too, since what others wait for is done when it is called, and a graph runs later.
  virtual void check_not_captured(std::string_view operation, StreamView stream) = 0;

  // Where this memory is, be it of allocate() or not, as `device` sees it: on a device, or the host's.
  virtual DeviceId place_of(const void* data, DeviceId device) = 0;

  // In the stream's order. Either side may be host memory, which must live until then and be of allocate_pinned() if
  // the host is not to wait: pageable memory makes CUDA stage it, and counts as a host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  virtual void zero(void* data, std::size_t bytes, StreamView stream) = 0;
  // In the stream's order: every element times `factor`, then over *divisor, which lies on the device; null: over
  // nothing. Floats are multiplied and divided in float32 or wider, then rounded; integers, whose factor is 1, are
  // divided in 64 bits, towards zero.
  virtual void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
                      StreamView stream) = 0;
  // In the stream's order: *first, which lies on the device, becomes 2 i if element i is the first that is NaN or
  // infinite and NaN, 2 i + 1 if it is infinite, where that is less than what it was. Integers are finite.
  virtual void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) = 0;
  // In the stream's order: `to` gets as many elements of `from` in another dtype: float32 or float64 rounded to float16
  // or bfloat16, through float32, or the latter widened. InvalidArgument for other dtypes, and other numbers.
  virtual void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) = 0;
  // In the stream's order: element i of `to` becomes the sum of element i of merges.size() rows of its dtype, a
  // float's, of which row r begins r * `stride` bytes behind `rows`. Row r is added to the newest merges[r] of the sums
  // that are kept, newest first, each of them the left operand, and the result is kept; after the last row one is. A
  // row whose number is kSkippedRow is not read. 16-bit floats are added in float32, and rounded once. `to` may be one
  // of the rows. At most kMostSummedRows on a device: InvalidArgument.
  virtual void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                        const BufferView& to, StreamView stream) = 0;
  // In the stream's order: *to = value, without host memory that has to live on.
  virtual void put(std::int64_t* to, std::int64_t value, StreamView stream) = 0;
};

// The runtime of a kind. Throws BackendUnavailable if its plug-in can't be loaded. Lives as long as the process.
LOCKSTEP_API DeviceRuntime& device_runtime(DeviceKind kind);

// The function of a plug-in that brings a device: it returns the same object on each call.
inline constexpr const char* kPluginDeviceSymbol = "lockstep_plugin_device";

// The packages that the CUDA plug-in stands on: for who loads it.
inline constexpr const char* kCudaPlugin = "cuda";
inline constexpr const char* kCudaRunsWith = "an NVIDIA driver";
inline constexpr const char* kCudaBuiltWith = "the CUDA toolkit (12.4 or newer, with nvcc)";

}  // namespace lockstep

extern "C" LOCKSTEP_API lockstep::DeviceRuntime* lockstep_plugin_device();
