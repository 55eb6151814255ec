// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "runtime/tensor/dropout.h"

namespace lockstep::cuda {
namespace {

struct Chances {
  std::uint32_t key0, key1;
  std::uint32_t threshold;
  float factor;
};

// base/random.h's philox, which is for the host.
__device__ __forceinline__ void philox_words(std::uint32_t (&words)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * words[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * words[2];
    const std::uint32_t second = words[1], fourth = words[3];
    words[0] = static_cast<std::uint32_t>(p1 >> 32) ^ second ^ key0;
    words[1] = static_cast<std::uint32_t>(p1);
    words[2] = static_cast<std::uint32_t>(p0 >> 32) ^ fourth ^ key1;
    words[3] = static_cast<std::uint32_t>(p0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// A thread has a philox block of a sample: four elements, sixteen apart.
__global__ void dropout_kernel(Span<float> out, Span<std::uint8_t> mask, Span<const float> x,
                               Span<const std::int64_t> ids, std::int64_t elements, Chances chances) {
  const std::int64_t blocks = (elements + kDropoutGroup - 1) / kDropoutGroup * kDropoutBlocks;
  for_each(ids.count * blocks, [&](std::int64_t i) {
    const std::int64_t sample = i / blocks, block = i % blocks;
    const auto id = static_cast<std::uint64_t>(ids[sample]);
    std::uint32_t words[4] = {static_cast<std::uint32_t>(block), 0, static_cast<std::uint32_t>(id),
                              static_cast<std::uint32_t>(id >> 32)};
    philox_words(words, chances.key0, chances.key1);
    const std::int64_t first = block / kDropoutBlocks * kDropoutGroup + block % kDropoutBlocks;
    for (int lane = 0; lane < 4; ++lane) {
      const std::int64_t element = first + lane * kDropoutBlocks;
      if (element >= elements) break;
      const std::int64_t at = sample * elements + element;
      const bool kept = words[lane] < chances.threshold;
      mask.set(at, kept ? 1 : 0);
      // A product, not a choice: what is infinite or NaN shows as NaN where it is dropped too, as in PyTorch.
      out.set(at, x[at] * (kept ? chances.factor : 0.0f));
    }
  });
}

__global__ void dropout_backward_kernel(Span<float> dx, bool add, Span<const float> dy, Span<const std::uint8_t> mask,
                                        float factor) {
  for_each(
      dx.count,
      [&](std::int64_t i) {
        const float slope = dy[i] * (mask[i] != 0 ? factor : 0.0f);
        return add ? dx[i] + slope : slope;
      },
      [&](std::int64_t i, float slope) { dx.set(i, slope); });
}

const Kernel kDropout("dropout", dropout_kernel);
const Kernel kDropoutBackward("dropout_backward", dropout_backward_kernel);

}  // namespace

void CudaKernels::dropout(float* out, std::uint8_t* mask, const float* x, const RandomKey& key, const std::int64_t* ids,
                          std::int64_t samples, std::int64_t elements, float keep) {
  const std::int64_t count = samples * elements;
  if (count == 0) return;
  const PhiloxKey words = dropout_key(key);
  const Chances chances{words[0], words[1], dropout_threshold(keep), 1.0f / keep};
  (*launch_)(kDropout, samples * parts_of(parts_of(elements, 4), kThreads), writes(out, count), writes(mask, count),
             reads(x, count), reads(ids, samples), elements, chances);
}

void CudaKernels::dropout_backward(Into dx, const float* dy, const std::uint8_t* mask, float keep, std::int64_t count) {
  if (count == 0) return;
  (*launch_)(kDropoutBackward, parts_of(count, kThreads), writes(dx.data, count), dx.add, reads(dy, count),
             reads(mask, count), 1.0f / keep);
}

}  // namespace lockstep::cuda
