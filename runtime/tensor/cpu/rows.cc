#include <algorithm>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t kStrip = 64;   // columns summed at once: they stay in registers
constexpr std::int64_t kBlock = 32;   // rows summed before they are added to the total: shorter chains, less rounding
constexpr std::int64_t kSquare = 16;  // a square of this side is transposed within the cache

}  // namespace

LOCKSTEP_CLONES void transpose(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kSquare) {
    const std::int64_t r1 = std::min(r0 + kSquare, rows);
    for (std::int64_t c = 0; c < columns; ++c) {
      float* target = out.data + c * rows;
      for (std::int64_t r = r0; r < r1; ++r) target[r] = (out.add ? target[r] : 0.0f) + a[r * columns + c];
    }
  }
}

LOCKSTEP_CLONES void add_row(float* out, const float* a, const float* row, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* target = out + r * columns;
    const float* source = a + r * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] = source[c] + row[c];
  }
}

LOCKSTEP_CLONES void sum_rows(Into out, const float* a, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t c0 = 0; c0 < columns; c0 += kStrip) {
    const std::int64_t width = std::min(kStrip, columns - c0);
    float total[kStrip] = {};
    for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock) {
      const std::int64_t r1 = std::min(r0 + kBlock, rows);
      float part[kStrip] = {};
      if (width == kStrip) {
        for (std::int64_t r = r0; r < r1; ++r) {
          const float* source = a + r * columns + c0;
#pragma omp simd
          for (std::int64_t c = 0; c < kStrip; ++c) part[c] += source[c];
        }
      } else {
        for (std::int64_t r = r0; r < r1; ++r) {
          const float* source = a + r * columns + c0;
#pragma omp simd
          for (std::int64_t c = 0; c < width; ++c) part[c] += source[c];
        }
      }
      for (std::int64_t c = 0; c < kStrip; ++c) total[c] += part[c];
    }
    float* target = out.data + c0;
    for (std::int64_t c = 0; c < width; ++c) target[c] = (out.add ? target[c] : 0.0f) + total[c];
  }
}

LOCKSTEP_CLONES void sum(Into out, const float* a, float alpha, std::int64_t count) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(a[i]);
  *out.data = (out.add ? *out.data : 0.0f) + static_cast<float>(alpha * total);
}

LOCKSTEP_CLONES double sum_squares(const float* a, std::int64_t count) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(a[i]) * static_cast<double>(a[i]);
  return total;
}

}  // namespace lockstep::cpu
