// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/half_arrays.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "lockstep/device/dtype.h"
#include "runtime/base/clones.h"

namespace lockstep {
namespace {

LOCKSTEP_VECTOR_CLONES void plain_to_floats(const float16* __restrict from, float* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = to_float(from[i]);
}
LOCKSTEP_VECTOR_CLONES void plain_to_float16s(const float* __restrict from, float16* __restrict out,
                                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = to_float16(from[i]);
}

#ifdef __x86_64__
// By a table and not by clones.h: a compiler has no loop that becomes these instructions, a test can ask for each way,
// and clang and the sanitizers get them too. Processors with AVX-512 have F16C.
constexpr std::size_t kLanes = 8;

__attribute__((target("avx,f16c"))) void f16c_to_floats(const float16* from, float* out, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) out[i] = to_float(from[i]);
}

__attribute__((target("avx,f16c"))) void f16c_to_float16s(const float* from, float16* out, std::size_t count) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  // half.h's only NaN. The instruction would keep the upper bits of each.
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 values = _mm256_loadu_ps(from + i);
    const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    const __m256 one_nan = _mm256_blendv_ps(values, _mm256_or_ps(_mm256_and_ps(values, sign), nan), is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(one_nan, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) out[i] = to_float16(from[i]);
}

// Asks the processor, and whether the system keeps the wide registers: AVX's bit tells the latter.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 && __builtin_cpu_supports("avx");
}
#else
bool has_f16c() { return false; }
#endif

constexpr HalfArrays kWays[] = {
#ifdef __x86_64__
    {"F16C", f16c_to_floats, f16c_to_float16s},
#endif
    {"none", plain_to_floats, plain_to_float16s},
};

}  // namespace

std::span<const HalfArrays> half_arrays() {
  static const bool has_all = has_f16c();
  const std::span<const HalfArrays> ways = kWays;
  return has_all ? ways : ways.last(1);
}

void to_floats(const float16* from, float* out, std::size_t count) { half_arrays()[0].to_floats(from, out, count); }
void to_float16s(const float* from, float16* out, std::size_t count) { half_arrays()[0].to_float16s(from, out, count); }

}  // namespace lockstep
