// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
// Enough to fill any GPU; a thread takes as many steps as are left then.
constexpr std::int64_t kMostBlocks = 4096;

__device__ float quotient(float value, std::int64_t divisor) { return value / static_cast<float>(divisor); }
__device__ double quotient(double value, std::int64_t divisor) { return value / static_cast<double>(divisor); }
__device__ __nv_bfloat16 quotient(__nv_bfloat16 value, std::int64_t divisor) {
  return __float2bfloat16_rn(__bfloat162float(value) / static_cast<float>(divisor));
}
__device__ __half quotient(__half value, std::int64_t divisor) {
  return __float2half_rn(__half2float(value) / static_cast<float>(divisor));
}
// -2^63 over -1 does not fit; as two's complement it is itself.
__device__ std::int64_t whole(std::int64_t value, std::int64_t divisor) {
  return divisor == -1 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value)) : value / divisor;
}
__device__ std::int64_t quotient(std::int64_t value, std::int64_t divisor) { return whole(value, divisor); }
__device__ std::int32_t quotient(std::int32_t value, std::int64_t divisor) {
  return static_cast<std::int32_t>(whole(value, divisor));
}
__device__ std::uint8_t quotient(std::uint8_t value, std::int64_t divisor) {
  return static_cast<std::uint8_t>(whole(value, divisor));
}

// Memory is the limit, so each thread moves 16 bytes at once where the buffer allows; `head` elements come before the
// first such address.
template <typename T>
__global__ void divide(T* data, std::int64_t count, std::int64_t head, const std::int64_t* divisor, bool clears) {
  constexpr int kPack = 16 / sizeof(T);
  const std::int64_t by = *divisor;
  if (by == 1 || (by == 0 && !clears)) return;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t packs = (count - head) / kPack;
  auto* const wide = reinterpret_cast<uint4*>(data + head);
  if (by == 0) {
    for (std::int64_t i = thread; i < packs; i += threads) wide[i] = make_uint4(0, 0, 0, 0);
    for (std::int64_t i = thread; i < head; i += threads) data[i] = T(0);
    for (std::int64_t i = head + packs * kPack + thread; i < count; i += threads) data[i] = T(0);
    return;
  }
  for (std::int64_t i = thread; i < packs; i += threads) {
    uint4 pack = wide[i];
    T* const values = reinterpret_cast<T*>(&pack);
#pragma unroll
    for (int k = 0; k < kPack; ++k) values[k] = quotient(values[k], by);
    wide[i] = pack;
  }
  for (std::int64_t i = thread; i < head; i += threads) data[i] = quotient(data[i], by);
  for (std::int64_t i = head + packs * kPack + thread; i < count; i += threads) data[i] = quotient(data[i], by);
}

// The exponent of a float of these bits, and its lowest bit: device/not_finite.cc has why.
template <typename Bits>
__global__ void first_not_finite(const Bits* numbers, std::int64_t count, Bits exponent, Bits one,
                                 unsigned long long* first) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    const Bits number = numbers[i];
    if ((number & exponent) != exponent) continue;
    // What this thread looks at later is behind it.
    atomicMin(first, 2 * static_cast<unsigned long long>(i) + ((number & static_cast<Bits>(one - 1)) == 0 ? 1 : 0));
    return;
  }
}

__global__ void put(std::int64_t* to, std::int64_t value) { *to = value; }

// Its own error is what a launch returns: cudaGetLastError() might be about something of the program's.
template <typename T>
cudaError_t launch(void* data, std::int64_t count, const std::int64_t* divisor, OverZero over_zero,
                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % 16);
  const std::int64_t head = std::min<std::int64_t>(count, past == 0 ? 0 : (16 - past) / static_cast<int>(sizeof(T)));
  const std::int64_t work = count / (16 / static_cast<int>(sizeof(T))) + 1;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((work + kThreads - 1) / kThreads, kMostBlocks));
  T* values = static_cast<T*>(data);
  bool clears = over_zero == OverZero::is_zero;
  void* arguments[] = {&values, const_cast<std::int64_t*>(&count), const_cast<std::int64_t*>(&head), &divisor, &clears};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&divide<T>), dim3(blocks), dim3(kThreads), arguments, 0,
                          stream);
}

template <typename Bits>
cudaError_t launch_search(const void* data, std::int64_t count, Bits exponent, Bits one, std::int64_t* first,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, kMostBlocks));
  // Never negative, so that it is the same number without a sign.
  auto* to = reinterpret_cast<unsigned long long*>(first);
  void* arguments[] = {&data, &count, &exponent, &one, &to};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&first_not_finite<Bits>), dim3(blocks), dim3(kThreads),
                          arguments, 0, stream);
}

template <typename Kernel>
cudaError_t load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

}  // namespace

cudaError_t load_kernels() {
  for (const cudaError_t error :
       {load(divide<float>), load(divide<double>), load(divide<__nv_bfloat16>), load(divide<__half>),
        load(divide<std::int32_t>), load(divide<std::int64_t>), load(divide<std::uint8_t>),
        load(first_not_finite<std::uint16_t>), load(first_not_finite<std::uint32_t>),
        load(first_not_finite<std::uint64_t>), load(put)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_divide(void* data, std::int64_t count, DType dtype, const std::int64_t* divisor, OverZero over_zero,
                          cudaStream_t stream) {
  switch (dtype) {
    case DType::f32: return launch<float>(data, count, divisor, over_zero, stream);
    case DType::f64: return launch<double>(data, count, divisor, over_zero, stream);
    case DType::bf16: return launch<__nv_bfloat16>(data, count, divisor, over_zero, stream);
    case DType::f16: return launch<__half>(data, count, divisor, over_zero, stream);
    case DType::i32: return launch<std::int32_t>(data, count, divisor, over_zero, stream);
    case DType::i64: return launch<std::int64_t>(data, count, divisor, over_zero, stream);
    case DType::u8: return launch<std::uint8_t>(data, count, divisor, over_zero, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_first_not_finite(const void* data, std::int64_t count, DType dtype, std::int64_t* first,
                                    cudaStream_t stream) {
  switch (dtype) {
    case DType::f32: return launch_search<std::uint32_t>(data, count, 0x7f80'0000, 0x0080'0000, first, stream);
    case DType::f64:
      return launch_search<std::uint64_t>(data, count, 0x7ff0'0000'0000'0000, 0x0010'0000'0000'0000, first, stream);
    case DType::bf16: return launch_search<std::uint16_t>(data, count, 0x7f80, 0x0080, first, stream);
    case DType::f16: return launch_search<std::uint16_t>(data, count, 0x7c00, 0x0400, first, stream);
    case DType::i32:
    case DType::i64:
    case DType::u8: return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_put(std::int64_t* to, std::int64_t value, cudaStream_t stream) {
  void* arguments[] = {&to, &value};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&put), dim3(1), dim3(1), arguments, 0, stream);
}

}  // namespace lockstep::cuda
