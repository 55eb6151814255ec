// SPDX-License-Identifier: Apache-2.0
// The whole of the fake: devices, streams, events, memory, and what was seen. One per process, never destroyed.
//
// Threads: any; one lock over the books. The threads of the streams take it only to fail.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/fakes/cudart/captures.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/cudart/memory.h"
#include "tests/fakes/cudart/rules.h"
#include "tests/fakes/cudart/stream.h"

namespace lockstep::fake_cuda {

struct FakeEvent {
  bool timed = false;
  int device = 0;              // physical
  std::shared_ptr<Mark> mark;  // of the last record
  bool captured = false;       // that was in a stream which is captured
};

// Memory that cudaFreeAsync has given back in a stream that may not have come to it yet.
struct FreedInStream {
  Allocation* allocation = nullptr;
  std::size_t bytes = 0;
  std::uint32_t stream = 0;
  std::uint64_t number = 0;  // of the free in its stream
  std::shared_ptr<Mark> mark;
};

struct FakePool {
  int device = 0;  // physical
  std::uint64_t release_threshold = 0;
  std::uint64_t reserved = 0;  // bytes of the device
  std::uint64_t most_reserved = 0;
  std::uint64_t used = 0;  // of these: in allocations, and in `freed`
  std::uint64_t most_used = 0;
  std::vector<FreedInStream> freed;
};

class Runtime {
 public:
  static Runtime& get();
  static bool exists();

  // Every cuda* function begins with it: counts the call and says whether it goes on; `result` if not.
  bool begin(const char* function, cudaError_t& result);
  // Remembers it for cudaGetLastError, and returns it.
  cudaError_t finish(cudaError_t error);

  // The device of this thread, visible and physical.
  int& current();
  // A context comes up on it, if it has none, and is this thread's.
  void need_context();
  static bool thread_has_context();
  std::set<int> devices_with_context();
  int physical(int visible) const { return visible_[static_cast<std::size_t>(visible)]; }
  int device_count() const { return static_cast<int>(visible_.size()); }
  cudaError_t none() const { return none_; }  // why there is no device

  cudaError_t allocate(void** data, std::size_t bytes, bool pinned);
  cudaError_t free(void* data, bool pinned);
  cudaError_t free_without_waiting(void* data);

  cudaError_t create_pool(cudaMemPool_t* pool, const cudaMemPoolProps& wanted);
  cudaError_t set_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, const void* value);
  cudaError_t get_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
  cudaError_t allocate_from(cudaMemPool_t pool, void** data, std::size_t bytes, cudaStream_t stream);
  cudaError_t free_in(void* data, cudaStream_t stream);

  void memory_info(std::size_t& free_bytes, std::size_t& total_bytes);

  cudaError_t create_stream(cudaStream_t* stream, bool blocking);
  cudaError_t destroy_stream(cudaStream_t stream);
  cudaError_t query_stream(cudaStream_t stream);
  cudaError_t synchronize_stream(cudaStream_t stream);
  cudaError_t synchronize_device();
  void wait_for_device();

  cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(cudaStream_t stream);
  cudaError_t is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
  // Of a call that may wait for the device: what a capture has against it.
  cudaError_t unsafe_call();

  cudaError_t create_event(cudaEvent_t* event, bool timed);
  cudaError_t destroy_event(cudaEvent_t event);
  cudaError_t record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t wait(cudaStream_t stream, cudaEvent_t event);
  cudaError_t query_event(cudaEvent_t event);
  cudaError_t synchronize_event(cudaEvent_t event);
  cudaError_t elapsed(float* milliseconds, cudaEvent_t earlier, cudaEvent_t later);

  cudaError_t enqueue(cudaStream_t stream, std::string what, std::function<void()> run, const std::vector<Range>& reads,
                      const std::vector<Range>& writes);
  bool is_pinned_or_device(const void* data);
  bool is_device(const void* data);
  // The visible number of the device that the memory is on; -1 if it is no device's.
  int device_of(const void* data);
  void* host_address(const void* data);

  void count_host_synchronisation() { host_synchronisations_.fetch_add(1); }
  std::int64_t host_synchronisations() const { return host_synchronisations_.load(); }
  std::int64_t calls(std::string_view function);
  void inject(std::string_view rule);
  void heal();
  void collect(bool collecting);
  std::vector<std::string> take_violations();
  // A violation that a kernel has found. On a stream's thread.
  void report(const std::string& text);
  std::uint64_t seed() const { return seed_; }
  int multiprocessors() const { return multiprocessors_; }

 private:
  Runtime();
  // Null, with a violation, if there is none.
  std::shared_ptr<FakeStream> stream_of(cudaStream_t handle, const char* operation);
  FakeEvent* event_of(cudaEvent_t handle, const char* operation);
  std::shared_ptr<FakeStream> default_stream(int device);
  std::shared_ptr<FakeStream> new_stream(int device, bool blocking);
  // CUDA's rule for the default stream: it and the blocking ones wait for each other.
  void order_with_default(FakeStream& stream);
  void put_wait(FakeStream& stream, std::shared_ptr<Mark> mark);
  std::shared_ptr<Mark> put_mark(FakeStream& stream);
  FakePool* pool_of(cudaMemPool_t handle, const char* operation);
  // What the streams have come to is the pool's again.
  void settle(FakePool& pool);
  // What is unused above `keep` bytes is the device's again.
  void trim(FakePool& pool, std::uint64_t keep);
  // Takes bytes out of the pool for an allocation in the stream's order; false if there are none.
  bool take_from(FakePool& pool, std::size_t bytes, FakeStream& stream);
  // An operation of the stream's on these bytes that the device does in no time: the order of an allocation's life.
  bool put_access(FakeStream& stream, const std::string& what, const Range& writes);
  Access next_access(FakeStream& stream, const std::string& what);
  // False if it is in no order with another access.
  bool check(const Range& range, bool writes, const Access& access, const VectorClock& clock);
  void violation(const std::string& text);
  cudaError_t wait_for(const std::vector<std::shared_ptr<FakeStream>>& streams);
  std::vector<std::shared_ptr<FakeStream>> streams_of(int device);

  std::vector<int> visible_;  // physical index of each
  cudaError_t none_ = cudaSuccess;
  std::size_t device_bytes_ = 0;
  std::uint64_t seed_ = 0;
  int multiprocessors_ = 0;

  std::mutex mutex_;
  std::condition_variable healed_;
  std::uint64_t times_healed_ = 0;
  Memory memory_;
  Rules rules_;
  Captures captures_;
  std::map<int, std::size_t> used_;  // device memory by physical device
  std::map<void*, std::unique_ptr<FakePool>> pools_;
  std::map<const Allocation*, FakePool*> pool_by_allocation_;
  std::set<int> with_context_;
  std::uint32_t streams_ = 0;
  std::map<void*, std::shared_ptr<FakeStream>> live_streams_;
  std::map<int, std::shared_ptr<FakeStream>> default_streams_;
  std::map<void*, std::unique_ptr<FakeEvent>> live_events_;
  VectorClock host_;  // what the host knows to be done
  bool collecting_ = false;
  std::vector<std::string> violations_;
  std::atomic<std::int64_t> host_synchronisations_{0};
  std::atomic<int> sticky_{cudaSuccess};
};

}  // namespace lockstep::fake_cuda
