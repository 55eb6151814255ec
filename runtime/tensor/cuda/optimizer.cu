// SPDX-License-Identifier: Apache-2.0
// The bits of the CPU's (tensor/cpu/optimizer.cc): the same numbers rounded from double, the same operations, each
// rounded.
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

struct AdamWFloats {
  float beta1, share1, beta2, share2, decay, rate, root, epsilon;
};

__global__ void adamw_kernel(Span<float> weights, Span<const float> gradients, Span<float> moment1, Span<float> moment2,
                             AdamWFloats step) {
  for_each(weights.count, [&](std::int64_t i) {
    const float g = gradients[i];
    const float m = added(multiplied(step.beta1, moment1[i]), multiplied(step.share1, g));
    const float v = added(multiplied(step.beta2, moment2[i]), multiplied(multiplied(step.share2, g), g));
    moment1.set(i, m);
    moment2.set(i, v);
    const float size = added(multiplied(square_root(v), step.root), step.epsilon);
    weights.set(i, subtracted(multiplied(weights[i], step.decay), divided(multiplied(step.rate, m), size)));
  });
}

__global__ void sgd_kernel(Span<float> weights, Span<const float> gradients, float rate, float decay) {
  for_each(weights.count, [&](std::int64_t i) {
    const float g = added(gradients[i], multiplied(decay, weights[i]));
    weights.set(i, subtracted(weights[i], multiplied(rate, g)));
  });
}

__global__ void momentum_kernel(Span<float> weights, Span<const float> gradients, Span<float> velocity, float rate,
                                float decay, float momentum, bool nesterov) {
  for_each(weights.count, [&](std::int64_t i) {
    const float g = added(gradients[i], multiplied(decay, weights[i]));
    const float v = added(multiplied(momentum, velocity[i]), g);
    velocity.set(i, v);
    weights.set(i, subtracted(weights[i], multiplied(rate, nesterov ? added(g, multiplied(momentum, v)) : v)));
  });
}

const Kernel kAdamW("adamw", adamw_kernel);
const Kernel kSgd("sgd", sgd_kernel);
const Kernel kMomentum("sgd_with_momentum", momentum_kernel);

}  // namespace

void CudaKernels::adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
                        const AdamWStep& step) {
  if (count == 0) return;
  const AdamWFloats floats{.beta1 = static_cast<float>(step.beta1),
                           .share1 = static_cast<float>(1.0 - step.beta1),
                           .beta2 = static_cast<float>(step.beta2),
                           .share2 = static_cast<float>(1.0 - step.beta2),
                           .decay = static_cast<float>(1.0 - step.learning_rate * step.weight_decay),
                           .rate = static_cast<float>(step.learning_rate / step.correction1),
                           .root = static_cast<float>(1.0 / std::sqrt(step.correction2)),
                           .epsilon = static_cast<float>(step.epsilon)};
  (*launch_)(kAdamW, parts_of(count, kThreads), writes(weights, count), reads(gradients, count), writes(moment1, count),
             writes(moment2, count), floats);
}

void CudaKernels::sgd(float* weights, const float* gradients, float* velocity, std::int64_t count,
                      const SgdStep& step) {
  if (count == 0) return;
  const auto rate = static_cast<float>(step.learning_rate), decay = static_cast<float>(step.weight_decay);
  const auto momentum = static_cast<float>(step.momentum);
  if (momentum == 0) {
    (*launch_)(kSgd, parts_of(count, kThreads), writes(weights, count), reads(gradients, count), rate, decay);
  } else {
    (*launch_)(kMomentum, parts_of(count, kThreads), writes(weights, count), reads(gradients, count),
               writes(velocity, count), rate, decay, momentum, step.nesterov);
  }
}

}  // namespace lockstep::cuda
