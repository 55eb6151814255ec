// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/sum_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/clones.h"
#include "runtime/device/half_arrays.h"

namespace lockstep {
namespace {

// Elements at once: the sums that are kept stay in the caches.
constexpr std::size_t kBlock = 1024;

// `to` may be one of the two.
template <typename A>
LOCKSTEP_VECTOR_CLONES void add(const A* left, const A* right, A* to, std::size_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) to[i] = left[i] + right[i];
}

template <typename A>
void load(const A* from, A* to, std::size_t count) {
  std::copy_n(from, count, to);
}
void load(const float16* from, float* to, std::size_t count) { to_floats(from, to, count); }
void load(const bfloat16* from, float* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
template <typename A>
void store(const A* from, A* to, std::size_t count) {
  std::copy_n(from, count, to);
}
void store(const float* from, float16* to, std::size_t count) { to_float16s(from, to, count); }
void store(const float* from, bfloat16* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = to_bfloat16(from[i]);
}

template <typename T, typename A>
void sum_as(const std::byte* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, T* to,
            std::size_t count) {
  const auto row = [&](std::size_t r) {
    return reinterpret_cast<const T*>(rows + static_cast<std::ptrdiff_t>(r) * stride);
  };
  if constexpr (std::is_same_v<T, A>) {
    if (merges.size() == 2 && merges[1] == 1) return add(row(0), row(1), to, count);
  }
  std::vector<A> kept(kMostKeptSums * kBlock);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    A* next = kept.data();
    for (std::size_t r = 0; r < merges.size(); ++r) {
      if (merges[r] == kSkippedRow) continue;
      load(row(r) + begin, next, length);
      for (int merge = 0; merge < merges[r]; ++merge) {
        next -= kBlock;
        add(next, next + kBlock, next, length);
      }
      next += kBlock;
    }
    store(kept.data(), to + begin, length);
  }
}

}  // namespace

void check_summable(std::span<const std::uint8_t> merges, DType dtype) {
  const bool is_float = dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
  std::size_t kept = 0;
  bool fits = true;
  for (const std::uint8_t merge : merges) {
    if (merge == kSkippedRow) continue;
    fits = fits && merge <= kept && kept < kMostKeptSums;
    kept += std::size_t{1} - merge;
  }
  if (is_float && fits && kept == 1) return;
  throw InvalidArgument(
      fmt::format("sum_rows of {} rows of {} that leaves {} sums; give rows of floats, and merges that leave one sum",
                  merges.size(), name_of(dtype), kept));
}

void sum_rows_on_host(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges,
                      const BufferView& to) {
  check_summable(merges, to.dtype);
  const auto* const from = static_cast<const std::byte*>(rows);
  const auto count = static_cast<std::size_t>(to.count);
  switch (to.dtype) {
    case DType::f32: return sum_as<float, float>(from, stride, merges, static_cast<float*>(to.data), count);
    case DType::f64: return sum_as<double, double>(from, stride, merges, static_cast<double*>(to.data), count);
    case DType::bf16: return sum_as<bfloat16, float>(from, stride, merges, static_cast<bfloat16*>(to.data), count);
    default: return sum_as<float16, float>(from, stride, merges, static_cast<float16*>(to.data), count);
  }
}

}  // namespace lockstep
