// SPDX-License-Identifier: Apache-2.0
// Kernels with their types, the one function that launches them, and what they have in common: loops over more work
// than there are threads, and sums and maxima over a block in an order that is always the same.
#pragma once

#include <lockstep_gpu.cuh>

#include <cstdint>

#include "runtime/cuda/current_device.h"
#include "runtime/tensor/cuda/finding.h"
#include "runtime/tensor/cuda/launcher.h"

namespace lockstep::cuda {

inline constexpr int kThreads = 256;

template <typename... Parameters>
class Kernel final : public AnyKernel {
 public:
  Kernel(const char* title, void (*typed_function)(Parameters...), int size = kThreads)
      : AnyKernel(title, reinterpret_cast<const void*>(typed_function), size), function_(typed_function) {}

  void (*typed() const)(Parameters...) { return function_; }

 private:
  void (*function_)(Parameters...);
};

class Launch : public Launcher {
 public:
  using Launcher::Launcher;

  template <typename... Parameters, typename... Arguments>
  void operator()(const Kernel<Parameters...>& kernel, const Work& work, const Arguments&... arguments) const {
    const CurrentDevice current(stream().device);
    const int threads = threads_for(kernel, work);
    check_launch(kernel, submit(kernel.name(), kernel.typed(), blocks_for(work, threads),
                                static_cast<unsigned>(threads), handle(), arguments...));
  }
};

inline std::int64_t parts_of(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// A block for each of `rows`. The threads of a block wait for each other in every sum, so there are no more than have
// some elements each.
inline Work rows_of(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kElementsOfThread = 8;
  return {rows, parts_of(columns, kElementsOfThread)};
}

template <typename T>
Span<const T> reads(const T* data, std::int64_t count) {
  return {data, count};
}
template <typename T>
Span<T> writes(T* data, std::int64_t count) {
  return {data, count};
}

// body(i) for every i of [0, count), each by one thread of the launch.
template <typename Body>
__device__ __forceinline__ void for_each(std::int64_t count, const Body& body) {
  const std::int64_t threads = block_count() * thread_count();
  for (std::int64_t i = block_index() * thread_count() + thread_index(); i < count; i += threads) body(i);
}
// body(i, value(i)) for `first` and every `step`-th i behind it, below `end`. The values of several are asked for
// before the first is used: of one alone a thread would wait for memory most of the time.
template <typename Value, typename Body>
__device__ __forceinline__ void for_each_of(std::int64_t first, std::int64_t step, std::int64_t end, const Value& value,
                                            const Body& body) {
  constexpr int kAtOnce = 4;
  std::int64_t i = first;
  for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) {
    decltype(value(i)) values[kAtOnce];
    for (int k = 0; k < kAtOnce; ++k) values[k] = value(i + k * step);
    for (int k = 0; k < kAtOnce; ++k) body(i + k * step, values[k]);
  }
  for (; i < end; i += step) body(i, value(i));
}
// body(i) for every i of [0, count), each by all threads of a block together.
template <typename Body>
__device__ __forceinline__ void for_each_block(std::int64_t count, const Body& body) {
  for (std::int64_t i = block_index(); i < count; i += block_count()) body(i);
}
// body(i) for every i of [0, count), each by one thread of this block.
template <typename Body>
__device__ __forceinline__ void for_each_in_block(std::int64_t count, const Body& body) {
  for (std::int64_t i = thread_index(); i < count; i += thread_count()) body(i);
}

// The two with the values of several asked for at once, body(i, value(i)).
template <typename Value, typename Body>
__device__ __forceinline__ void for_each(std::int64_t count, const Value& value, const Body& body) {
  for_each_of(block_index() * thread_count() + thread_index(), block_count() * thread_count(), count, value, body);
}
template <typename Value, typename Body>
__device__ __forceinline__ void for_each_in_block(std::int64_t count, const Value& value, const Body& body) {
  for_each_of(thread_index(), thread_count(), count, value, body);
}

// The values of all threads of the block, put together in the same order each time: within each warp by halves, then
// warp by warp. All threads get it. Outside of branches.
template <typename T, typename Join>
__device__ __forceinline__ T over_block(T value, const Join& join) {
  LOCKSTEP_SHARED(T, of_warps, kWarp);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = join(value, shuffle_down(value, offset));
  if (thread_index() % kWarp == 0) of_warps.set(thread_index() / kWarp, value);
  barrier();
  T all = of_warps[0];
  for (int warp = 1; warp < thread_count() / kWarp; ++warp) all = join(all, of_warps[warp]);
  barrier();  // the next one writes there
  return all;
}

struct Plus {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
// The second of two where one is NaN, as the CPU's loops have it.
struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return b > a ? b : a; }
};
struct Smaller {
  __device__ __forceinline__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return b < a ? b : a; }
};

// The sum of value(i) over [0, count) by the block, in an order that depends on count alone.
template <typename T, typename Value>
__device__ __forceinline__ T sum_in_block(std::int64_t count, const Value& value) {
  T sum = 0;
  for_each_in_block(count, value, [&](std::int64_t, T term) { sum += term; });
  return over_block(sum, Plus{});
}

// By one thread of a launch. The first finding stays until the host has taken it.
__device__ __forceinline__ void report(const Span<Finding>& place, const Span<std::int64_t>& is_there,
                                       const Finding& finding) {
  if (is_raised(is_there)) return;
  place.set(0, finding);
  raise(is_there);
}

// Into's two ways.
__device__ __forceinline__ void put(const Span<float>& out, bool add, std::int64_t i, float value) {
  out.set(i, add ? out[i] + value : value);
}

}  // namespace lockstep::cuda
