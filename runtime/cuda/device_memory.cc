#include "runtime/cuda/device_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"
#include "runtime/cuda/poll.h"

namespace lockstep::cuda {

std::shared_ptr<void> DeviceAllocator::allocate(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const CurrentDevice current(device_);
  const OutsideCaptures outside;
  const std::size_t wanted = BlockCache::block_bytes(bytes);
  if (wanted < bytes) refuse(bytes);  // past what a size can say
  Block* block = take(wanted, stream);
  if (block == nullptr) block = grow(wanted, stream);
  if (block == nullptr) refuse(bytes);
  return {block->data, [self = shared_from_this(), block](void*) { self->release(block); }};
}

Block* DeviceAllocator::hand_out(Block* block) {
  if (block == nullptr) return nullptr;
  live_[block->data] = block;
  used_ += block->bytes;
  peak_ = std::max(peak_, used_);
  return block;
}

Block* DeviceAllocator::take(std::size_t bytes, cudaStream_t stream) {
  const auto put = [this](void* event) { events_.put(static_cast<cudaEvent_t>(event)); };
  const auto is_idle = [this](const Block& segment) {
    return reached(static_cast<cudaEvent_t>(segment.idle_after), device_);
  };
  std::vector<BlockCache::Unguarded> loose;
  Block* block = nullptr;
  {
    MutexLock lock(mutex_);
    loose = collect();
    block = cache_.take(bytes, stream, put);
    if (block == nullptr) {
      if (Block* const idle = cache_.take_out(bytes, stream, is_idle)) {
        block = cache_.hand_over(idle, bytes, stream, put);
      }
    }
    hand_out(block);
  }
  guard(loose);
  return block;
}

// The segment is nobody's until the stream waits: no other thread may have the rest of it for this stream before.
Block* DeviceAllocator::take_behind(std::size_t bytes, cudaStream_t stream) {
  Block* segment = nullptr;
  {
    MutexLock lock(mutex_);
    segment = cache_.take_out(bytes, stream, [](const Block&) { return true; });
    if (segment == nullptr) return nullptr;
    ++returning_;
  }
  const cudaError_t error = cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(segment->idle_after), 0);
  {
    MutexLock lock(mutex_);
    end_return();
    if (error == cudaSuccess) {
      const auto put = [this](void* event) { events_.put(static_cast<cudaEvent_t>(event)); };
      return hand_out(cache_.hand_over(segment, bytes, stream, put));
    }
    cache_.put_back(segment);
  }
  check(error, "cudaStreamWaitEvent", device_);
  return nullptr;
}

Block* DeviceAllocator::ask_device(std::size_t bytes, cudaStream_t stream) {
  const std::size_t segment = BlockCache::segment_bytes(bytes);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, segment);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, fmt::format("cudaMalloc of {} bytes", segment), device_);
  MutexLock lock(mutex_);
  ++counters_.allocations;
  return hand_out(cache_.add_segment(static_cast<std::byte*>(data), segment, bytes, stream));
}

// What another thread is giving back is in no cache, and the device has not got it yet.
Block* DeviceAllocator::grow(std::size_t bytes, cudaStream_t stream) {
  std::optional<Deadline> deadline;
  for (;;) {
    const std::int64_t before = returns();
    if (Block* const block = make_room(bytes, stream)) return block;
    if (!deadline) deadline = Deadline::after(limits_.returns);
    if (deadline->expired() || !await_return_after(before, *deadline)) return nullptr;
  }
}

std::int64_t DeviceAllocator::returns() {
  MutexLock lock(mutex_);
  return returns_;
}

bool DeviceAllocator::await_return_after(std::int64_t before, const Deadline& deadline) {
  MutexLock lock(mutex_);
  while (returns_ == before && returning_ > 0) {
    if (!returned_.wait_until(mutex_, deadline)) break;
  }
  return returns_ != before;
}

void DeviceAllocator::end_return() {
  --returning_;
  ++returns_;
  returned_.notify_all();
}

Block* DeviceAllocator::make_room(std::size_t bytes, cudaStream_t stream) {
  if (Block* const fresh = ask_device(bytes, stream)) return fresh;
  if (Block* const others = take_behind(bytes, stream)) return others;
  drain();
  if (Block* const fresh = ask_device(bytes, stream)) return fresh;
  if (!wait_for_pending()) return nullptr;
  if (Block* const own = take(bytes, stream)) return own;
  drain();
  return ask_device(bytes, stream);
}

bool DeviceAllocator::used_by(const void* memory, cudaStream_t stream) {
  MutexLock lock(mutex_);
  const auto found = live_.find(memory);
  if (found == live_.end()) return false;
  Block& block = *found->second;
  auto& others = block.other_streams;
  if (stream != block.stream && std::find(others.begin(), others.end(), stream) == others.end()) {
    others.push_back(stream);
  }
  return true;
}

void DeviceAllocator::release(Block* block) noexcept {
  try {
    std::optional<BlockCache::Unguarded> segment;
    {
      MutexLock lock(mutex_);
      live_.erase(block->data);
      used_ -= block->bytes;
      if (block->other_streams.empty()) {
        segment = cache_.give_back(block);
        block = nullptr;  // part of another, perhaps
      } else {
        pending_bytes_ += block->bytes;
        ++returning_;
      }
    }
    if (segment) guard({&*segment, 1});
    if (block != nullptr) release_behind_others(block);
  } catch (const std::exception& error) {
    // The device is broken, or gone as the process ends. Memory whose use can't be followed is nobody's from now on.
    log_debug("memory of {} is not used again: {}", device_.str(), error.what());
  }
}

void DeviceAllocator::release_behind_others(Block* block) {
  Pending pending{block, {}};
  try {
    for (void* const stream : block->other_streams) {
      pending.events.push_back(events_.record(static_cast<cudaStream_t>(stream)));
    }
  } catch (...) {
    MutexLock lock(mutex_);
    pending_bytes_ -= block->bytes;
    end_return();
    throw;
  }
  MutexLock lock(mutex_);
  pending_.push_back(std::move(pending));
  end_return();
}

// Where there is no event, because the device is broken, a segment stays with its stream.
void DeviceAllocator::guard(std::span<const BlockCache::Unguarded> segments) noexcept {
  for (const BlockCache::Unguarded& segment : segments) {
    try {
      const cudaEvent_t event = events_.record(static_cast<cudaStream_t>(segment.stream));
      MutexLock lock(mutex_);
      if (!cache_.guard(segment, event)) events_.put(event);
    } catch (const std::exception& error) {
      log_debug("memory of {} stays with its stream: {}", device_.str(), error.what());
    }
  }
}

std::vector<BlockCache::Unguarded> DeviceAllocator::collect() {
  std::vector<BlockCache::Unguarded> segments;
  for (std::size_t i = 0; i < pending_.size();) {
    Pending& pending = pending_[i];
    while (!pending.events.empty() && reached(pending.events.back(), device_)) {
      events_.put(pending.events.back());
      pending.events.pop_back();
    }
    if (!pending.events.empty()) {
      ++i;
      continue;
    }
    pending_bytes_ -= pending.block->bytes;
    Block* const block = pending.block;
    pending_[i] = std::move(pending_.back());
    pending_.pop_back();
    if (const auto segment = cache_.give_back(block)) segments.push_back(*segment);
  }
  return segments;
}

bool DeviceAllocator::wait_for_pending() {
  std::vector<Pending> taken;
  {
    MutexLock lock(mutex_);
    taken.swap(pending_);
    if (taken.empty()) return false;
    ++returning_;
  }
  const Deadline deadline = Deadline::after(limits_.kernels);
  std::int64_t waits = 0;
  // Also where a wait fails: what is still used is waited for later, and no block is lost.
  const auto put_back = [&] {
    MutexLock lock(mutex_);
    counters_.host_waits += waits;
    pending_.insert(pending_.end(), std::make_move_iterator(taken.begin()), std::make_move_iterator(taken.end()));
    end_return();
  };
  try {
    for (const Pending& pending : taken) {
      for (const cudaEvent_t event : pending.events) {
        const auto is_over = [&] { return reached(event, device_); };
        if (is_over()) continue;
        ++waits;
        if (!poll(is_over, deadline)) throw_stuck(pending.block->bytes, deadline);
      }
    }
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  guard_collected();
  return true;
}

void DeviceAllocator::throw_stuck(std::size_t bytes, const Deadline& deadline) const {
  throw Timeout(fmt::format(
      "allocate: {} is full, and a block of {} bytes that came back is still used in another stream, {}; a kernel that "
      "takes so long, or never ends, as a collective does whose other rank is gone; use a smaller batch or model",
      describe_(), bytes, deadline.progress()));
}

void DeviceAllocator::guard_collected() {
  std::vector<BlockCache::Unguarded> segments;
  {
    MutexLock lock(mutex_);
    segments = collect();
  }
  guard(segments);
}

void DeviceAllocator::drain() {
  std::vector<std::byte*> segments;
  {
    MutexLock lock(mutex_);
    cache_.drain([&](std::byte* data, std::size_t, void* event) {
      segments.push_back(data);
      // Who asks the device to take it back waits for all of the device.
      if (event != nullptr) events_.put(static_cast<cudaEvent_t>(event));
    });
    if (segments.empty()) return;
    counters_.host_waits += static_cast<std::int64_t>(segments.size());
    ++returning_;
  }
  cudaError_t error = cudaSuccess;
  for (std::byte* const data : segments) {
    const cudaError_t own = cudaFree(data);
    if (error == cudaSuccess) error = own;
  }
  {
    MutexLock lock(mutex_);
    end_return();
  }
  check(error, "cudaFree", device_);
}

void DeviceAllocator::release_cached() {
  const CurrentDevice current(device_);
  const OutsideCaptures outside;
  guard_collected();
  drain();
}

DeviceMemory DeviceAllocator::memory() {
  const CurrentDevice current(device_);
  DeviceMemory memory;
  check(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes), "cudaMemGetInfo", device_);
  MutexLock lock(mutex_);
  memory.used_bytes = used_;
  memory.cached_bytes = cache_.free_bytes() + pending_bytes_;
  memory.peak_bytes = peak_;
  return memory;
}

DeviceAllocator::Counters DeviceAllocator::counters() {
  MutexLock lock(mutex_);
  return counters_;
}

void DeviceAllocator::refuse(std::size_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  // Nothing more to say if even this fails: the error is the one below.
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) cudaGetLastError();
  std::size_t used = 0;
  std::size_t kept = 0;
  {
    MutexLock lock(mutex_);
    used = used_;
    kept = cache_.free_bytes() + pending_bytes_;
  }
  throw DeviceError(fmt::format(
      "allocate: no room for {} bytes on {}: {} of its {} bytes are free; this process (pid {}) uses {} "
      "and keeps {} in "
      "blocks that are too small, beside what other libraries of the process keep, such as LibTorch's cache "
      "(c10::cuda::CUDACachingAllocator::emptyCache()); use a smaller batch or model, or see in nvidia-smi "
      "what else runs there",
      bytes, describe_(), free_bytes, total_bytes, ::getpid(), used, kept));
}

}  // namespace lockstep::cuda
