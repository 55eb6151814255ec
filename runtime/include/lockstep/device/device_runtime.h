// SPDX-License-Identifier: Apache-2.0
// DeviceRuntime has the functions of one kind of device; streams, events and memory are built on these functions. The
// CPU's runtime is built in, and its work is done when a call returns. CUDA's runtime is in the plug-in
// liblockstep_cuda.so, which the first call that needs CUDA loads.
//
// A call makes the host wait only if the call's comment says so, and counts the wait in counters().
// Threads: any thread may make a call, but only one thread at a time may use an object. A call keeps the calling
//   thread's current CUDA device. As an exception, a thread without a context stays on the device of the call, because
//   returning to GPU 0 would create a context on GPU 0.
// Failure: a call throws DeviceError with the operation, the device and the words of the device's library. A call
//   throws BackendUnavailable, with the reason and the remedy, if the device does not exist.
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
  std::string uuid;        // "GPU-5f2c...", equal in every process and container; empty for the CPU
  std::string pci_bus_id;  // "0000:19:00.0"; empty for the CPU
  std::size_t memory_bytes = 0;
  int major = 0;  // the compute capability, major.minor
  int minor = 0;
  // The versions of the driver and of the runtime library in the plug-in, as CUDA counts: 13000 is 13.0.
  int driver_version = 0;
  int runtime_version = 0;
};

struct DeviceMemory {
  // The free memory of the device, which all processes share.
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  // The memory of this process's allocations that are alive, or whose release their stream has not reached yet.
  std::size_t used_bytes = 0;
  std::size_t cached_bytes = 0;  // memory kept for the next allocations
  std::size_t peak_bytes = 0;    // the largest used_bytes so far
};

// DeviceCounters holds counters of this process since its start. A training step should not raise these counters.
struct DeviceCounters {
  std::int64_t host_waits = 0;  // number of times that a call of DeviceRuntime made the host wait
  // The largest amount of device and pinned memory that this process has held so far, in use or kept.
  std::size_t reserved_bytes = 0;
};

// OverZero says what divide() does if the divisor is 0: with `stays` elements keep their values, with `is_zero` they
// become 0.
enum class OverZero : std::uint8_t { stays, is_zero };

// The value of *first that means, after first_not_finite(), that every number is finite.
inline constexpr std::int64_t kAllFinite = std::numeric_limits<std::int64_t>::max();

// The constants of sum_rows(): the number of a row to skip, and limits.
inline constexpr std::uint8_t kSkippedRow = 255;
inline constexpr std::size_t kMostSummedRows = 2048;
inline constexpr std::size_t kMostKeptSums = 32;  // sums kept at one time: enough for 2^31 rows in a binary tree

class LOCKSTEP_API DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;
  // Returns the number of devices that this process sees. 0 is not an error: why_none() then returns a text that says
  // what is missing and how to get it. Before the first call of count() or why_none() the runtime does not use CUDA, so
  // the program may still set CUDA_VISIBLE_DEVICES.
  virtual int count() = 0;
  virtual std::string why_none() = 0;
  virtual DeviceInfo info(DeviceId device) = 0;

  // Allocates memory on the device, 256-byte aligned, contents undefined; returns null for 0 bytes. The last copy of
  // the pointer frees the memory in the stream's order, after the stream's present work, without a wait.
  //
  // The memory is ready in the order of `stream`. Before another stream uses the memory, the program makes the other
  // stream wait for an event in `stream`. Before the program drops the last copy of the pointer, it makes `stream` wait
  // for an event after this use. A stream that the program made without class Stream must live as long as the memory.
  //
  // If the device has no room, the host waits for the stream, and then the call throws DeviceError with the bytes
  // wanted, free, used and kept. Throws Timeout if the stream's kernels have not ended after 10 minutes, and
  // InvalidArgument while the stream is being captured.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) = 0;
  // Allocates pinned host memory, 256-byte aligned, which the device copies to and from without staging. The last copy
  // of the pointer returns the memory to a cache. The cache hands the memory out again after the copies that copy() has
  // put into streams are done.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) = 0;
  virtual DeviceMemory memory(DeviceId device) = 0;
  virtual DeviceCounters counters() const = 0;

  // The next functions make and use streams and events; stream.h has their contracts. The pointers that create_stream()
  // and create_event() return are the handles, null on the CPU. The device finishes a stream's work even if the
  // stream's last copy is dropped.
  virtual std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) = 0;
  virtual void synchronize(StreamView stream, const Deadline& deadline) = 0;
  virtual std::shared_ptr<void> create_event(DeviceId device, bool timed) = 0;
  virtual void record(void* event, StreamView stream) = 0;
  virtual void block(StreamView stream, void* event) = 0;
  virtual bool reached(void* event) = 0;
  virtual void synchronize(void* event, const Deadline& deadline) = 0;
  virtual std::chrono::nanoseconds elapsed(void* earlier, void* later) = 0;
  // Throws InvalidArgument, which names `operation`, if the stream is being captured into a CUDA graph. record() and
  // block() also throw InvalidArgument then, because a graph runs later, and other streams would wait for work that was
  // only recorded.
  virtual void check_not_captured(std::string_view operation, StreamView stream) = 0;

  // Returns the device that holds the memory at `data`, as `device` sees it; the CPU's id for host memory. The memory
  // need not come from allocate().
  virtual DeviceId place_of(const void* data, DeviceId device) = 0;

  // Copies `bytes` bytes in the stream's order. Either side may be host memory, which must live until the copy is done.
  // With memory of allocate_pinned() the host does not wait. CUDA stages copies of pageable memory, and such a copy
  // counts as a host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  virtual void zero(void* data, std::size_t bytes, StreamView stream) = 0;
  // Multiplies every element by `factor` and divides it by *divisor, in the stream's order. `divisor` points to a
  // number on the device; null means no division. Floats are multiplied and divided in float32 or wider, then rounded.
  // Integers, for which `factor` must be 1, are divided in 64 bits, towards zero.
  virtual void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
                      StreamView stream) = 0;
  // Finds the first element i that is NaN or infinite, in the stream's order. Lowers *first, a number on the device, to
  // 2 i for NaN or to 2 i + 1 for infinity; a smaller *first stays. Integers are always finite.
  virtual void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) = 0;
  // Converts the elements of `from` to the dtype of `to`, in the stream's order. float32 and float64 are rounded to
  // float16 or bfloat16, through float32; float16 and bfloat16 are widened to float32 or float64. Throws
  // InvalidArgument for other dtypes and for different counts.
  virtual void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) = 0;
  // Sums merges.size() rows of floats, in the stream's order: element i of `to` becomes the sum of element i of the
  // rows. Row r has the dtype of `to`, and begins r * `stride` bytes after `rows`.
  //
  // `merges` gives the order of additions on a stack of sums. Row r is added to the newest merges[r] sums of the stack,
  // newest first, with the sum from the stack as the left operand; the result replaces these sums. After the last row
  // the stack holds one sum. If merges[r] is kSkippedRow, row r is not read. 16-bit floats are added in float32, and
  // rounded once. `to` may be one of the rows. Throws InvalidArgument for more than kMostSummedRows rows on a device.
  virtual void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                        const BufferView& to, StreamView stream) = 0;
  // Sets *to = value, in the stream's order. No host memory has to outlive the call.
  virtual void put(std::int64_t* to, std::int64_t value, StreamView stream) = 0;
};

// Returns the runtime of a kind of device; the runtime lives as long as the process. Throws BackendUnavailable if the
// runtime's plug-in can't be loaded.
LOCKSTEP_API DeviceRuntime& device_runtime(DeviceKind kind);

// The name of a plug-in's function that returns the plug-in's only DeviceRuntime.
inline constexpr const char* kPluginDeviceSymbol = "lockstep_plugin_device";

// The names of the CUDA plug-in and of the packages that it needs, for messages of the code that loads the plug-in.
inline constexpr const char* kCudaPlugin = "cuda";
inline constexpr const char* kCudaRunsWith = "an NVIDIA driver";
inline constexpr const char* kCudaBuiltWith = "the CUDA toolkit (12.4 or newer, with nvcc)";

}  // namespace lockstep

extern "C" LOCKSTEP_API lockstep::DeviceRuntime* lockstep_plugin_device();
