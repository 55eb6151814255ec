// SPDX-License-Identifier: Apache-2.0
// Memory pools: what is allocated and given back in the order of a stream.
//
// An allocation and its end count as writes of all its bytes in their stream: an access that neither the order of a
// stream, nor an event, nor a wait of the host puts between them is a violation that names both. No two allocations
// have an address in common, so a late access is seen even where the bytes are somebody else's on a GPU.
#include <fmt/format.h>

#include <algorithm>

#include "tests/fakes/cudart/runtime.h"

namespace lockstep::fake_cuda {
namespace {

constexpr std::size_t kAlignment = 512;
// What a pool asks the device for at a time.
constexpr std::size_t kReserved = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

FakePool* Runtime::pool_of(cudaMemPool_t handle, const char* operation) {
  const auto found = pools_.find(handle);
  if (found != pools_.end()) return found->second.get();
  violation(fmt::format("{} with a pool that does not exist", operation));
  return nullptr;
}

cudaError_t Runtime::create_pool(cudaMemPool_t* handle, const cudaMemPoolProps& wanted) {
  std::lock_guard lock(mutex_);
  const bool is_pinned_device = wanted.allocType == cudaMemAllocationTypePinned &&
                                wanted.location.type == cudaMemLocationTypeDevice && wanted.location.id >= 0 &&
                                wanted.location.id < device_count();
  if (!is_pinned_device) return cudaErrorInvalidValue;
  auto pool = std::make_unique<FakePool>();
  pool->device = physical(wanted.location.id);
  *handle = reinterpret_cast<cudaMemPool_t>(pool.get());
  pools_[*handle] = std::move(pool);
  return cudaSuccess;
}

cudaError_t Runtime::set_attribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, const void* value) {
  std::lock_guard lock(mutex_);
  FakePool* const pool = pool_of(handle, "cudaMemPoolSetAttribute");
  if (pool == nullptr || attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
  pool->release_threshold = *static_cast<const std::uint64_t*>(value);
  return cudaSuccess;
}

cudaError_t Runtime::get_attribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  std::lock_guard lock(mutex_);
  FakePool* const pool = pool_of(handle, "cudaMemPoolGetAttribute");
  if (pool == nullptr) return cudaErrorInvalidValue;
  settle(*pool);
  auto& result = *static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: result = pool->release_threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: result = pool->reserved; break;
    case cudaMemPoolAttrReservedMemHigh: result = pool->most_reserved; break;
    case cudaMemPoolAttrUsedMemCurrent: result = pool->used; break;
    case cudaMemPoolAttrUsedMemHigh: result = pool->most_used; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

void Runtime::settle(FakePool& pool) {
  std::erase_if(pool.freed, [&](FreedInStream& freed) {
    if (!freed.mark->reached()) return false;
    if (freed.allocation != nullptr) memory_.free(*freed.allocation);
    pool.used -= freed.bytes;
    return true;
  });
}

void Runtime::trim(FakePool& pool, std::uint64_t keep) {
  settle(pool);
  if (pool.reserved <= keep) return;
  const std::uint64_t unused = std::min(pool.reserved - pool.used, pool.reserved - keep);
  pool.reserved -= unused;
  used_[pool.device] -= unused;
}

// As CUDA's own pools: what came back in the stream's order first, then what nobody uses, which is put together from
// pieces; then the device; then what comes back in another stream, behind that. This order is the pool's own: it puts
// no access of the program's behind another.
bool Runtime::take_from(FakePool& pool, std::size_t bytes, FakeStream& stream) {
  settle(pool);
  const auto take = [&](const auto& fits) {
    const auto found = std::find_if(pool.freed.begin(), pool.freed.end(),
                                    [&](const FreedInStream& freed) { return freed.bytes >= bytes && fits(freed); });
    if (found == pool.freed.end()) return false;
    stream.push([mark = found->mark] { mark->wait(); });
    // The rest waits for its stream as before. The pages are taken away with it, or never.
    found->bytes -= bytes;
    pool.used -= bytes;
    return true;
  };
  const auto is_before = [&](const FreedInStream& freed) { return stream.clock.covers(freed.stream, freed.number); };
  std::size_t& of_device = used_[pool.device];
  if (!take(is_before) && pool.reserved - pool.used < bytes) {
    const std::size_t more = round_up(bytes - (pool.reserved - pool.used), kReserved);
    if (more <= device_bytes_ - of_device) {
      of_device += more;
      pool.reserved += more;
      pool.most_reserved = std::max(pool.most_reserved, pool.reserved);
    } else if (!take([](const FreedInStream&) { return true; })) {
      return false;
    }
  }
  pool.used += bytes;
  pool.most_used = std::max(pool.most_used, pool.used);
  return true;
}

bool Runtime::put_access(FakeStream& stream, const std::string& what, const Range& writes) {
  const Access access = next_access(stream, what);
  stream.clock.set(stream.id, access.number);
  stream.operations = access.number;
  return check(writes, true, access, stream.clock);
}

cudaError_t Runtime::allocate_from(cudaMemPool_t handle, void** data, std::size_t bytes, cudaStream_t stream_handle) {
  std::lock_guard lock(mutex_);
  *data = nullptr;
  FakePool* const pool = pool_of(handle, "cudaMallocFromPoolAsync");
  const auto stream = stream_of(stream_handle, "cudaMallocFromPoolAsync");
  if (pool == nullptr || stream == nullptr || bytes == 0) return cudaErrorInvalidValue;
  // In a capture it is an allocation of the graph's, which lives when that runs.
  if (captures_.takes(*stream)) return captures_.refuse(cudaErrorStreamCaptureUnsupported);
  if (bytes > device_bytes_) return cudaErrorMemoryAllocation;
  order_with_default(*stream);
  stream->clock.join(host_);
  const std::size_t wanted = round_up(bytes, kAlignment);
  if (!take_from(*pool, wanted, *stream)) return cudaErrorMemoryAllocation;
  Allocation* const allocation = memory_.allocate(bytes, pool->device, false);
  if (allocation == nullptr) return cudaErrorMemoryAllocation;
  allocation->pooled = true;
  pool_by_allocation_[allocation] = pool;
  put_access(*stream, fmt::format("cudaMallocFromPoolAsync of {} bytes", bytes), {allocation->address, bytes});
  *data = allocation->address;
  return cudaSuccess;
}

cudaError_t Runtime::free_in(void* data, cudaStream_t stream_handle) {
  std::lock_guard lock(mutex_);
  const auto stream = stream_of(stream_handle, "cudaFreeAsync");
  if (stream == nullptr) return cudaErrorInvalidValue;
  Allocation* const allocation = memory_.find(data);
  if (allocation == nullptr || allocation->address != data || allocation->freed || !allocation->pooled) {
    violation(fmt::format("cudaFreeAsync of {}, which is not a living allocation of a pool{}", data,
                          allocation == nullptr ? "" : ": " + allocation->describe()));
    return cudaErrorInvalidValue;
  }
  // There it frees an allocation of the graph's.
  if (captures_.takes(*stream)) return captures_.refuse(cudaErrorInvalidValue);
  order_with_default(*stream);
  stream->clock.join(host_);
  const bool in_order =
      put_access(*stream, fmt::format("cudaFreeAsync of {} bytes", allocation->bytes), {data, allocation->bytes});
  const auto pool = pool_by_allocation_.extract(allocation).mapped();
  allocation->freed = true;
  // What is still to come to bytes that were given back too early finds them.
  pool->freed.push_back({in_order ? allocation : nullptr, round_up(allocation->bytes, kAlignment), stream->id,
                         stream->operations, put_mark(*stream)});
  return cudaSuccess;
}

}  // namespace lockstep::fake_cuda
