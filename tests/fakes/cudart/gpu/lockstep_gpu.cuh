// SPDX-License-Identifier: Apache-2.0
// Kernels on the host: the twin of runtime/tensor/cuda/gpu/lockstep_gpu.cuh, over ../blocks.h. Spans check each access.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/fakes/cudart/blocks.h"

namespace lockstep::cuda {

inline constexpr int kWarp = fake_cuda::kWarp;

template <typename T>
struct Span {
  T* data = nullptr;
  std::int64_t count = 0;

  std::remove_const_t<T> operator[](std::int64_t i) const {
    std::remove_const_t<T> value{};
    if (fake_cuda::may_access(data, i, 1, count, sizeof(T), false, alignof(T))) value = data[i];
    return value;
  }
  void set(std::int64_t i, T value) const {
    if (fake_cuda::may_access(data, i, 1, count, sizeof(T), true, alignof(T))) data[i] = value;
  }
};

struct Four {
  float x, y, z, w;
};

template <typename T>
Four load4(const Span<T>& span, std::int64_t i) {
  if (!fake_cuda::may_access(span.data, i, 4, span.count, sizeof(T), false, 16)) return {};
  return {span.data[i], span.data[i + 1], span.data[i + 2], span.data[i + 3]};
}
inline void store4(const Span<float>& span, std::int64_t i, const Four& four) {
  if (!fake_cuda::may_access(span.data, i, 4, span.count, sizeof(float), true, 16)) return;
  span.data[i] = four.x;
  span.data[i + 1] = four.y;
  span.data[i + 2] = four.z;
  span.data[i + 3] = four.w;
}

template <typename T>
Span<T> shared_of(const void* place, std::int64_t size) {
  return {static_cast<T*>(fake_cuda::shared_memory(place, static_cast<std::size_t>(size) * sizeof(T))), size};
}
#define LOCKSTEP_SHARED(T, name, size) \
  static const char name##_place = 0;  \
  const ::lockstep::cuda::Span<T> name = ::lockstep::cuda::shared_of<T>(&name##_place, size)

inline int thread_index() { return fake_cuda::thread_index(); }
inline int thread_count() { return fake_cuda::thread_count(); }
inline std::int64_t block_index() { return fake_cuda::block_index(); }
inline std::int64_t block_count() { return fake_cuda::block_count(); }

inline void barrier() { fake_cuda::wait_for_block(); }
template <typename T>
T shuffle_down(T value, int offset) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = fake_cuda::exchange_in_warp(bits, offset);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned ballot(bool value) { return fake_cuda::vote_in_warp(value); }
inline int first_bit(unsigned bits) { return bits == 0 ? -1 : std::countr_zero(bits); }

inline bool is_raised(const Span<std::int64_t>& flag) {
  return fake_cuda::may_access(flag.data, 0, 1, flag.count, sizeof(std::int64_t), false, 8) &&
         std::atomic_ref(*flag.data).load(std::memory_order_acquire) != 0;
}
inline void raise(const Span<std::int64_t>& flag) {
  if (!fake_cuda::may_access(flag.data, 0, 1, flag.count, sizeof(std::int64_t), true, 8)) return;
  std::atomic_ref(*flag.data).store(1, std::memory_order_release);
}

// This file's users are compiled with -ffp-contract=off.
inline float multiplied(float a, float b) { return a * b; }
inline float added(float a, float b) { return a + b; }
inline float subtracted(float a, float b) { return a - b; }
inline float divided(float a, float b) { return a / b; }
inline float square_root(float a) { return std::sqrt(a); }

namespace on_host {

template <typename T>
void note(const T&, std::vector<fake_cuda::Range>&, std::vector<fake_cuda::Range>&) {}
template <typename T>
void note(const Span<T>& span, std::vector<fake_cuda::Range>& reads, std::vector<fake_cuda::Range>& writes) {
  const fake_cuda::Range range{span.data, static_cast<std::size_t>(span.count) * sizeof(T)};
  if (range.bytes == 0) return;
  reads.push_back(range);
  if (!std::is_const_v<T>) writes.push_back(range);
}
template <typename T>
void move_to_host(T&) {}
template <typename T>
void move_to_host(Span<T>& span) {
  if (span.count > 0) span.data = static_cast<T*>(fake_cuda::host_address(span.data));
}

}  // namespace on_host

template <typename... Parameters, typename... Arguments>
cudaError_t submit(const char* name, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                   cudaStream_t stream, const Arguments&... arguments) {
  auto values = std::make_shared<std::tuple<Parameters...>>(arguments...);
  std::vector<fake_cuda::Range> reads;
  std::vector<fake_cuda::Range> writes;
  std::apply(
      [&](auto&... value) {
        (on_host::note(value, reads, writes), ...);
        (on_host::move_to_host(value), ...);
      },
      *values);
  return fake_cuda::launch(
      stream, name, reinterpret_cast<const void*>(kernel), blocks, threads,
      [kernel, values] { std::apply(kernel, *values); }, reads, writes);
}

}  // namespace lockstep::cuda
