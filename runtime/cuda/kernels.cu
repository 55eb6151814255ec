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

__device__ float quotient(float value, double factor, std::int64_t divisor) {
  return value * static_cast<float>(factor) / static_cast<float>(divisor);
}
__device__ double quotient(double value, double factor, std::int64_t divisor) {
  return value * factor / static_cast<double>(divisor);
}
__device__ __nv_bfloat16 quotient(__nv_bfloat16 value, double factor, std::int64_t divisor) {
  return __float2bfloat16_rn(quotient(__bfloat162float(value), factor, divisor));
}
__device__ __half quotient(__half value, double factor, std::int64_t divisor) {
  return __float2half_rn(quotient(__half2float(value), factor, divisor));
}
// -2^63 over -1 does not fit; as two's complement it is itself.
__device__ std::int64_t whole(std::int64_t value, std::int64_t divisor) {
  return divisor == -1 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(value)) : value / divisor;
}
__device__ std::int64_t quotient(std::int64_t value, double, std::int64_t divisor) { return whole(value, divisor); }
__device__ std::int32_t quotient(std::int32_t value, double, std::int64_t divisor) {
  return static_cast<std::int32_t>(whole(value, divisor));
}
__device__ std::uint8_t quotient(std::uint8_t value, double, std::int64_t divisor) {
  return static_cast<std::uint8_t>(whole(value, divisor));
}

// Memory is the limit, so each thread moves 16 bytes at once where the buffer allows; `head` elements come before the
// first such address.
template <typename T>
__global__ void divide(T* data, std::int64_t count, std::int64_t head, double factor, const std::int64_t* divisor,
                       bool clears) {
  constexpr int kPack = 16 / sizeof(T);
  const std::int64_t by = divisor == nullptr ? 1 : *divisor;
  if ((by == 1 && factor == 1) || (by == 0 && !clears)) return;
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
    for (int k = 0; k < kPack; ++k) values[k] = quotient(values[k], factor, by);
    wide[i] = pack;
  }
  for (std::int64_t i = thread; i < head; i += threads) data[i] = quotient(data[i], factor, by);
  for (std::int64_t i = head + packs * kPack + thread; i < count; i += threads) data[i] = quotient(data[i], factor, by);
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

__device__ float widened(float value) { return value; }
__device__ double widened(double value) { return value; }
__device__ float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widened(__half value) { return __half2float(value); }
__device__ void store(float* to, float value) { *to = value; }
__device__ void store(double* to, double value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }

template <typename From, typename To>
__global__ void convert(const From* from, To* to, std::int64_t count) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    store(to + i, static_cast<float>(widened(from[i])));
  }
}

// By value, in a kernel's arguments.
struct Merges {
  int rows;
  std::uint8_t of_row[kMostSummedRows];
};

// `to` may be a row: each thread reads its elements of all rows before it writes one.
template <typename T>
__global__ void sum_rows(const char* rows, std::int64_t stride, T* to, std::int64_t count, Merges merges) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) {
    decltype(widened(T())) kept[kMostKeptSums];
    int height = 0;
    for (int row = 0; row < merges.rows; ++row) {
      const int merge = merges.of_row[row];
      if (merge == kSkippedRow) continue;
      auto sum = widened(reinterpret_cast<const T*>(rows + row * stride)[i]);
      for (int m = 0; m < merge; ++m) sum = kept[--height] + sum;
      kept[height++] = sum;
    }
    store(to + i, kept[0]);
  }
}

__global__ void put(std::int64_t* to, std::int64_t value) { *to = value; }

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, kMostBlocks));
}

// Its own error is what a launch returns: cudaGetLastError() might be about something of the program's.
template <typename T>
cudaError_t launch(void* data, std::int64_t count, double factor, const std::int64_t* divisor, OverZero over_zero,
                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % 16);
  const std::int64_t head = std::min<std::int64_t>(count, past == 0 ? 0 : (16 - past) / static_cast<int>(sizeof(T)));
  const std::int64_t work = count / (16 / static_cast<int>(sizeof(T))) + 1;
  T* values = static_cast<T*>(data);
  bool clears = over_zero == OverZero::is_zero;
  void* arguments[] = {&values, &count, const_cast<std::int64_t*>(&head), &factor, &divisor, &clears};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&divide<T>), dim3(blocks_for(work)), dim3(kThreads), arguments,
                          0, stream);
}

template <typename Bits>
cudaError_t launch_search(const void* data, std::int64_t count, Bits exponent, Bits one, std::int64_t* first,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  // Never negative, so that it is the same number without a sign.
  auto* to = reinterpret_cast<unsigned long long*>(first);
  void* arguments[] = {&data, &count, &exponent, &one, &to};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&first_not_finite<Bits>), dim3(blocks_for(count)),
                          dim3(kThreads), arguments, 0, stream);
}

template <typename From, typename To>
cudaError_t launch_conversion(const void* from, void* to, std::int64_t count, cudaStream_t stream) {
  void* arguments[] = {&from, &to, &count};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&convert<From, To>), dim3(blocks_for(count)), dim3(kThreads),
                          arguments, 0, stream);
}

template <typename Wide, typename Half>
cudaError_t launch_conversion(const void* from, DType from_dtype, void* to, std::int64_t count, cudaStream_t stream) {
  const bool narrows = from_dtype == DType::f32 || from_dtype == DType::f64;
  return narrows ? launch_conversion<Wide, Half>(from, to, count, stream)
                 : launch_conversion<Half, Wide>(from, to, count, stream);
}

template <typename T>
cudaError_t launch_sum(const void* rows, std::int64_t stride, Merges& merges, void* to, std::int64_t count,
                       cudaStream_t stream) {
  void* arguments[] = {&rows, &stride, &to, &count, &merges};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&sum_rows<T>), dim3(blocks_for(count)), dim3(kThreads),
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
        load(first_not_finite<std::uint64_t>), load(convert<float, __nv_bfloat16>), load(convert<double, __nv_bfloat16>),
        load(convert<float, __half>), load(convert<double, __half>), load(convert<__nv_bfloat16, float>),
        load(convert<__nv_bfloat16, double>), load(convert<__half, float>), load(convert<__half, double>),
        load(sum_rows<float>), load(sum_rows<double>), load(sum_rows<__nv_bfloat16>), load(sum_rows<__half>),
        load(put)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_divide(void* data, std::int64_t count, DType dtype, double factor, const std::int64_t* divisor,
                          OverZero over_zero, cudaStream_t stream) {
  switch (dtype) {
    case DType::f32: return launch<float>(data, count, factor, divisor, over_zero, stream);
    case DType::f64: return launch<double>(data, count, factor, divisor, over_zero, stream);
    case DType::bf16: return launch<__nv_bfloat16>(data, count, factor, divisor, over_zero, stream);
    case DType::f16: return launch<__half>(data, count, factor, divisor, over_zero, stream);
    case DType::i32: return launch<std::int32_t>(data, count, factor, divisor, over_zero, stream);
    case DType::i64: return launch<std::int64_t>(data, count, factor, divisor, over_zero, stream);
    case DType::u8: return launch<std::uint8_t>(data, count, factor, divisor, over_zero, stream);
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

cudaError_t launch_convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count,
                           cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const bool is_double = from_dtype == DType::f64 || to_dtype == DType::f64;
  if (from_dtype == DType::bf16 || to_dtype == DType::bf16) {
    return is_double ? launch_conversion<double, __nv_bfloat16>(from, from_dtype, to, count, stream)
                     : launch_conversion<float, __nv_bfloat16>(from, from_dtype, to, count, stream);
  }
  return is_double ? launch_conversion<double, __half>(from, from_dtype, to, count, stream)
                   : launch_conversion<float, __half>(from, from_dtype, to, count, stream);
}

cudaError_t launch_sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, void* to,
                            std::int64_t count, DType dtype, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  Merges in_order{};
  in_order.rows = static_cast<int>(merges.size());
  std::copy(merges.begin(), merges.end(), in_order.of_row);
  switch (dtype) {
    case DType::f32: return launch_sum<float>(rows, stride, in_order, to, count, stream);
    case DType::f64: return launch_sum<double>(rows, stride, in_order, to, count, stream);
    case DType::bf16: return launch_sum<__nv_bfloat16>(rows, stride, in_order, to, count, stream);
    case DType::f16: return launch_sum<__half>(rows, stride, in_order, to, count, stream);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t launch_put(std::int64_t* to, std::int64_t value, cudaStream_t stream) {
  void* arguments[] = {&to, &value};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&put), dim3(1), dim3(1), arguments, 0, stream);
}

}  // namespace lockstep::cuda
