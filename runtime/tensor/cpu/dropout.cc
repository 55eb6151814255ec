// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/dropout.h"

namespace lockstep::cpu {
namespace {

struct Words {
  std::uint32_t c0, c1, c2, c3;
};

// One round of base/random.h's philox, on scalars, which a loop over blocks turns into vectors.
LOCKSTEP_INLINE void round(Words& w, std::uint32_t k0, std::uint32_t k1) {
  const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * w.c0;
  const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * w.c2;
  w = {static_cast<std::uint32_t>(p1 >> 32) ^ w.c1 ^ k0, static_cast<std::uint32_t>(p1),
       static_cast<std::uint32_t>(p0 >> 32) ^ w.c3 ^ k1, static_cast<std::uint32_t>(p0)};
}

LOCKSTEP_CLONES void random_group(std::uint32_t* out, std::uint32_t group, std::uint32_t id_low, std::uint32_t id_high,
                                  std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
#pragma omp simd
  for (std::uint32_t j = 0; j < kDropoutBlocks; ++j) {
    Words w{group * static_cast<std::uint32_t>(kDropoutBlocks) + j, 0, id_low, id_high};
    round(w, key0, key1);
    round(w, key0 + kStep0, key1 + kStep1);
    round(w, key0 + 2 * kStep0, key1 + 2 * kStep1);
    round(w, key0 + 3 * kStep0, key1 + 3 * kStep1);
    round(w, key0 + 4 * kStep0, key1 + 4 * kStep1);
    round(w, key0 + 5 * kStep0, key1 + 5 * kStep1);
    round(w, key0 + 6 * kStep0, key1 + 6 * kStep1);
    round(w, key0 + 7 * kStep0, key1 + 7 * kStep1);
    round(w, key0 + 8 * kStep0, key1 + 8 * kStep1);
    round(w, key0 + 9 * kStep0, key1 + 9 * kStep1);
    out[j] = w.c0;
    out[j + kDropoutBlocks] = w.c1;
    out[j + 2 * kDropoutBlocks] = w.c2;
    out[j + 3 * kDropoutBlocks] = w.c3;
  }
}

// A product, not a choice: what is infinite or NaN shows as NaN where it is dropped too, as in PyTorch.
LOCKSTEP_CLONES void apply(float* out, std::uint8_t* mask, const float* x, const std::uint32_t* random,
                           std::uint32_t threshold, float factor, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const bool kept = random[i] < threshold;
    mask[i] = kept ? 1 : 0;
    out[i] = x[i] * (kept ? factor : 0.0f);
  }
}

}  // namespace

void dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
             std::int64_t samples, std::int64_t elements, float keep) {
  const PhiloxKey words = dropout_key(key);
  const std::uint32_t threshold = dropout_threshold(keep);
  const float factor = 1.0f / keep;
  for (std::int64_t s = 0; s < samples; ++s) {
    const auto id = static_cast<std::uint64_t>(ids[s]);
    const std::int64_t first = s * elements;
    for (std::int64_t e = 0; e < elements; e += kDropoutGroup) {
      std::array<std::uint32_t, kDropoutGroup> random;
      random_group(random.data(), static_cast<std::uint32_t>(e / kDropoutGroup), static_cast<std::uint32_t>(id),
                   static_cast<std::uint32_t>(id >> 32), words[0], words[1]);
      apply(out + first + e, mask + first + e, x + first + e, random.data(), threshold, factor,
            std::min(kDropoutGroup, elements - e));
    }
  }
}

LOCKSTEP_CLONES void dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep,
                                      std::int64_t count) {
  const float factor = 1.0f / keep;
  float* target = dx.data;
  if (dx.add) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] += dy[i] * (mask[i] != 0 ? factor : 0.0f);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) target[i] = dy[i] * (mask[i] != 0 ? factor : 0.0f);
  }
}

}  // namespace lockstep::cpu
