// SPDX-License-Identifier: Apache-2.0
// The parts of our kernels, as nvcc compiles them. tests/fakes/cudart/gpu has the twin of this file for the host's
// compiler, which holds every access to the rules that are written here; the include path chooses between them.
//
// A kernel may: read and write memory through spans, share memory within a block, wait for its block, pass values
// within a warp. It may not: use an atomic operation, wait for another block, rely on the order in which threads run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <tuple>
#include <utility>

namespace lockstep::cuda {

inline constexpr int kWarp = 32;

// Memory of the device that a kernel is given: of a const T it is read, else written, and may be read. Elements that
// one thread writes no other one may touch in the same launch, but in its own block with a barrier between.
template <typename T>
struct Span {
  T* data = nullptr;
  std::int64_t count = 0;

  __device__ __forceinline__ std::remove_const_t<T> operator[](std::int64_t i) const { return data[i]; }
  __device__ __forceinline__ void set(std::int64_t i, T value) const { data[i] = value; }
};

struct Four {
  float x, y, z, w;
};

// Elements i to i + 3, i a multiple of 4: the span begins at a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ Four load4(const Span<T>& span, std::int64_t i) {
  const float4 four = *reinterpret_cast<const float4*>(span.data + i);
  return {four.x, four.y, four.z, four.w};
}
__device__ __forceinline__ void store4(const Span<float>& span, std::int64_t i, const Four& four) {
  *reinterpret_cast<float4*>(span.data + i) = make_float4(four.x, four.y, four.z, four.w);
}

// Memory of a block, of undefined contents: a line in a kernel, outside of branches.
#define LOCKSTEP_SHARED(T, name, size) \
  __shared__ T name##_memory[size];    \
  const ::lockstep::cuda::Span<T> name { name##_memory, size }

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int thread_count() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ std::int64_t block_index() { return blockIdx.x; }
__device__ __forceinline__ std::int64_t block_count() { return gridDim.x; }

// Every thread of the block comes here, or none.
__device__ __forceinline__ void barrier() { __syncthreads(); }
// Every thread of the warp comes here, or none. The value of the thread that is `offset` behind; of those that have
// none their own.
template <typename T>
__device__ __forceinline__ T shuffle_down(T value, int offset) {
  return __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(offset));
}
// One bit for each thread of the warp. As above.
__device__ __forceinline__ unsigned ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
__device__ __forceinline__ int first_bit(unsigned bits) { return __ffs(static_cast<int>(bits)) - 1; }

// A flag that the host looks at while kernels run. A reader that finds it raised finds what was written before.
__device__ __forceinline__ bool is_raised(const Span<std::int64_t>& flag) {
  return *static_cast<const volatile std::int64_t*>(flag.data) != 0;
}
__device__ __forceinline__ void raise(const Span<std::int64_t>& flag) {
  __threadfence_system();
  *static_cast<volatile std::int64_t*>(flag.data) = 1;
}

// Each rounded, and never fused with what follows.
__device__ __forceinline__ float multiplied(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float added(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float subtracted(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float divided(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float square_root(float a) { return __fsqrt_rn(a); }

// CUDA's own word for a launch; launcher.h is how kernels are launched.
template <typename... Parameters, typename... Arguments>
cudaError_t submit(const char*, void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream,
                   const Arguments&... arguments) {
  std::tuple<Parameters...> values(arguments...);
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads), pointers, 0,
                                stream);
      },
      values);
}

}  // namespace lockstep::cuda
