// SPDX-License-Identifier: Apache-2.0
// DeviceRuntime is the interface to one kind of device; streams, events and memory are built on its functions. The
// CPU's runtime is built into the library, and finishes its work before a call returns. CUDA's runtime is in the
// plug-in liblockstep_cuda.so; the first call that needs CUDA loads the plug-in.
//
// A function of DeviceRuntime makes the host wait only if the function's comment says so; counters() tells how often
// the host has waited.
// Threads: any thread may call a DeviceRuntime, but only one thread at a time may use a stream or event. A
//   DeviceRuntime's functions leave the calling thread's current CUDA device unchanged. A thread without a CUDA
//   context, however, keeps the device of the call as its current device, because returning to GPU 0 would create a
//   context on GPU 0.
// Failure: a DeviceRuntime's functions throw DeviceError, whose message holds the operation, the device and the error
//   text of the device's library. The functions throw BackendUnavailable, with the reason and the remedy, if the device
//   does not exist.
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
  // The versions of the driver and of the plug-in's CUDA runtime library, in CUDA's encoding: 13000 is version 13.0.
  int driver_version = 0;
  int runtime_version = 0;
};

struct DeviceMemory {
  // The number of bytes of the device's memory that no process uses.
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  // The number of bytes in this process's allocations, including dropped allocations that a stream has still to free.
  std::size_t used_bytes = 0;
  std::size_t cached_bytes = 0;  // memory kept for the next allocations
  std::size_t peak_bytes = 0;    // the largest used_bytes so far
};

// DeviceCounters holds counters of this process since its start. A training step should not raise the counters
// of DeviceCounters.
struct DeviceCounters {
  std::int64_t host_waits = 0;  // number of times that a call of DeviceRuntime made the host wait
  // The largest number of bytes of device and pinned memory that this process has held so far, in use or cached.
  std::size_t reserved_bytes = 0;
};

// OverZero says what divide() does if the divisor is 0: `stays` keeps the values of the elements, and `is_zero` sets
// the elements to 0.
enum class OverZero : std::uint8_t { stays, is_zero };

// The value that `*first` has after first_not_finite() if every number is finite.
inline constexpr std::int64_t kAllFinite = std::numeric_limits<std::int64_t>::max();

// The constants of sum_rows(): kSkippedRow in `merges` marks a row to skip, and kMostSummedRows limits the number
// of rows.
inline constexpr std::uint8_t kSkippedRow = 255;
inline constexpr std::size_t kMostSummedRows = 2048;
inline constexpr std::size_t kMostKeptSums = 32;  // sums kept at one time: enough for 2^31 rows in a binary tree

class LOCKSTEP_API DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual DeviceKind kind() const = 0;
  // Returns the number of devices that this process sees. If count() returns 0, no error has occurred, and why_none()
  // returns a text that says which part is missing and how to get the part. Before the first call of count() or
  // why_none() the runtime does not use CUDA, so the program may still set CUDA_VISIBLE_DEVICES.
  virtual int count() = 0;
  virtual std::string why_none() = 0;
  virtual DeviceInfo info(DeviceId device) = 0;

  // Allocates 256-byte aligned memory on the device, with undefined contents; returns null for 0 bytes. When the last
  // copy of the pointer is dropped, the memory is freed after all work that `stream` has at that time; the host does
  // not wait.
  //
  // Work that is queued in `stream` after allocate() returns may use the memory. Before another stream uses the memory,
  // the program must make the other stream wait for an event that was recorded in `stream`. If another stream has used
  // the memory, the program must make `stream` wait for an event after this use, before the program drops the last copy
  // of the pointer. A stream that the program made without class Stream must live as long as the memory.
  //
  // If the device has no room, the host waits for the stream. If the device still has no room, the call throws
  // DeviceError, whose message says how many bytes the call needs and how many bytes are free and in use. Throws
  // Timeout if the stream's kernels have not ended after 10 minutes, and InvalidArgument while the stream is being
  // captured into a CUDA graph.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) = 0;
  // Allocates pinned host memory, 256-byte aligned; the device copies to and from pinned memory without staging. When
  // the last copy of the pointer is dropped, the pinned memory returns to a cache. The cache hands the pinned memory
  // out again after all copies that copy() has queued for the memory are done.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) = 0;
  virtual DeviceMemory memory(DeviceId device) = 0;
  virtual DeviceCounters counters() const = 0;

  // The functions from create_stream() to elapsed() make and use streams and events; device/stream.h has their
  // contracts. The functions create_stream() and create_event() return the handle of the new stream or event, or null
  // on the CPU. The device finishes a stream's work even if the stream's last copy is dropped.
  virtual std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) = 0;
  virtual void synchronize(StreamView stream, const Deadline& deadline) = 0;
  virtual std::shared_ptr<void> create_event(DeviceId device, bool timed) = 0;
  virtual void record(void* event, StreamView stream) = 0;
  virtual void block(StreamView stream, void* event) = 0;
  virtual bool reached(void* event) = 0;
  virtual void synchronize(void* event, const Deadline& deadline) = 0;
  virtual std::chrono::nanoseconds elapsed(void* earlier, void* later) = 0;
  // Throws InvalidArgument, which names `operation`, if the stream is being captured into a CUDA graph. The functions
  // record() and block() also throw InvalidArgument for a captured stream, because other streams would wait for work
  // that the capture only records.
  virtual void check_not_captured(std::string_view operation, StreamView stream) = 0;

  // Asks the driver of `device` where the memory at `data` is. Returns the id of the device that holds the memory, or
  // the CPU's id for host memory. The memory need not come from allocate().
  virtual DeviceId place_of(const void* data, DeviceId device) = 0;

  // Copies `bytes` bytes in the stream's order. Both `to` and `from` may be host memory; the host memory must live
  // until the copy is done. The host does not wait if the host memory comes from allocate_pinned(). CUDA stages copies
  // of pageable memory, so a copy of pageable memory counts as a host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  virtual void zero(void* data, std::size_t bytes, StreamView stream) = 0;
  // Multiplies every element of `buffer` by `factor` and divides every element by *divisor, after the earlier work in
  // `stream`. `divisor` points to a number in the device's memory; a null `divisor` means no division. The function
  // divide() multiplies and divides floats in float32 or wider, and then rounds the results. Integers, for which
  // `factor` must be 1, are divided in 64 bits and rounded towards zero.
  virtual void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
                      StreamView stream) = 0;
  // Finds the first element of `buffer` that is NaN or infinite, after the earlier work in `stream`. If the first NaN
  // or infinity is element i of `buffer`, first_not_finite() lowers `*first` to 2 i for NaN or to 2 i + 1 for infinity;
  // a smaller `*first` keeps its value. `first` points to a number in the device's memory. Integers are always finite.
  virtual void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) = 0;
  // Converts the elements of `from` to the dtype of `to`, after the earlier work in `stream`. The function convert()
  // rounds float32 and float64 to float16 or bfloat16, through float32, and widens float16 and bfloat16 to float32 or
  // float64. Throws InvalidArgument for all other pairs of dtypes, and unless `from` and `to` have the same number of
  // elements.
  virtual void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) = 0;
  // Sums merges.size() rows of floats, after the earlier work in `stream`: element i of `to` becomes the sum of the
  // elements i of all rows. Row r has the dtype of `to`, and begins r * `stride` bytes after `rows`.
  //
  // `merges` gives the order of the additions, in which sum_rows() uses a stack of partial sums. For row r, sum_rows()
  // takes the newest merges[r] sums off the stack, newest first, adds each to the row (stack sum + row), and puts the
  // result on the stack. After the last row the stack must hold exactly one sum. If merges[r] is kSkippedRow,
  // sum_rows() does not read row r. Rows of 16-bit floats are added in float32, and the result is rounded once. `to`
  // may be one of the rows. Throws InvalidArgument for more than kMostSummedRows rows on a device.
  virtual void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                        const BufferView& to, StreamView stream) = 0;
  // Writes `value` to `*to` in the device's memory, after the earlier work in `stream`. The device reads no host memory
  // after put() returns.
  virtual void put(std::int64_t* to, std::int64_t value, StreamView stream) = 0;
};

// Returns the runtime of a kind of device. The runtime lives as long as the process. Throws BackendUnavailable if the
// runtime's plug-in can't be loaded.
LOCKSTEP_API DeviceRuntime& device_runtime(DeviceKind kind);

// The name of the function in a plug-in that returns the plug-in's only DeviceRuntime.
inline constexpr const char* kPluginDeviceSymbol = "lockstep_plugin_device";

// The names of the CUDA plug-in and of the software that the plug-in needs, for error messages of the plug-in's loader.
inline constexpr const char* kCudaPlugin = "cuda";
inline constexpr const char* kCudaRunsWith = "an NVIDIA driver";
inline constexpr const char* kCudaBuiltWith = "the CUDA toolkit (12.4 or newer, with nvcc)";

}  // namespace lockstep

extern "C" LOCKSTEP_API lockstep::DeviceRuntime* lockstep_plugin_device();
