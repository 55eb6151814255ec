// SPDX-License-Identifier: Apache-2.0
// CUDA as a DeviceRuntime (device/device_runtime.h has the contract), over the runtime library that is linked into this
// plug-in. It shares the device's primary context with whatever CUDA the program has itself, so that streams, events
// and memory go to and fro.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/mutex.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/cuda/pinned_memory.h"
#include "runtime/cuda/stream_pool.h"

namespace lockstep::cuda {

class CudaRuntime final : public DeviceRuntime {
 public:
  CudaRuntime();

  DeviceKind kind() const override { return DeviceKind::cuda; }
  int count() override;
  std::string why_none() override;
  DeviceInfo info(DeviceId device) override;

  std::shared_ptr<void> allocate(std::size_t bytes, StreamView stream) override;
  std::shared_ptr<void> allocate_pinned(std::size_t bytes, DeviceId device) override;
  DeviceMemory memory(DeviceId device) override;
  DeviceCounters counters() const override;

  std::shared_ptr<void> create_stream(DeviceId device, Stream::Priority priority) override;
  void synchronize(StreamView stream, const Deadline& deadline) override;
  std::shared_ptr<void> create_event(DeviceId device, bool timed) override;
  void record(void* event, StreamView stream) override;
  void block(StreamView stream, void* event) override;
  bool reached(void* event) override;
  void synchronize(void* event, const Deadline& deadline) override;
  std::chrono::nanoseconds elapsed(void* earlier, void* later) override;
  void check_not_captured(std::string_view operation, StreamView stream) override;

  DeviceId place_of(const void* data, DeviceId device) override;

  void copy(void* to, const void* from, std::size_t bytes, StreamView stream) override;
  void zero(void* data, std::size_t bytes, StreamView stream) override;
  void divide(const BufferView& buffer, double factor, const std::int64_t* divisor, OverZero over_zero,
              StreamView stream) override;
  void first_not_finite(const BufferView& buffer, std::int64_t* first, StreamView stream) override;
  void convert(const ConstBufferView& from, const BufferView& to, StreamView stream) override;
  void sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, const BufferView& to,
                StreamView stream) override;
  void put(std::int64_t* to, std::int64_t value, StreamView stream) override;

 private:
  // State that is kept for a device that has been used.
  struct Device {
    Device(DeviceId id, std::function<std::string()> describe)
        : events(std::make_shared<EventPool>(id)),
          memory(std::make_shared<DeviceAllocator>(id, std::move(describe))),
          streams(std::make_shared<StreamPool>(id)) {}
    std::shared_ptr<EventPool> events;
    std::shared_ptr<DeviceAllocator> memory;
    std::shared_ptr<StreamPool> streams;
    Mutex load_mutex;
    // With the first stream: before it has work that a loading would wait for.
    bool kernels_are_loaded GUARDED_BY(load_mutex) = false;
  };
  // Throws BackendUnavailable if there is no such device, InvalidArgument if it is not one of CUDA's.
  Device& use(DeviceId device) EXCLUDES(mutex_);
  std::string describe(DeviceId device);
  // Asks `done` until it says yes. The host waits if it doesn't at once.
  void wait(const std::function<bool()>& done, DeviceId device, const char* what, const Deadline& deadline);
  bool is_pageable(const void* data, StreamView stream);

  mutable Mutex mutex_;
  std::map<DeviceId, std::unique_ptr<Device>> devices_ GUARDED_BY(mutex_);
  std::shared_ptr<PinnedAllocator> pinned_;
  std::atomic<int> count_{0};  // once it is above 0 it stays
  std::atomic<std::int64_t> host_waits_{0};
};

}  // namespace lockstep::cuda
