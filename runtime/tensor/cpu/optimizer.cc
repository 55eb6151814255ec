// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {

// Loshchilov & Hutter, arXiv:1711.05101, algorithm 2, with the schedule multiplier inside the learning rate, as
// PyTorch.
LOCKSTEP_CLONES void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
                           const AdamWStep& step) {
  // 1 - beta is rounded once: from a beta that is a float already, it would be off by 1e-5 of itself for 0.999.
  const auto beta1 = static_cast<float>(step.beta1), share1 = static_cast<float>(1.0 - step.beta1);
  const auto beta2 = static_cast<float>(step.beta2), share2 = static_cast<float>(1.0 - step.beta2);
  const auto decay = static_cast<float>(1.0 - step.learning_rate * step.weight_decay);
  const auto rate = static_cast<float>(step.learning_rate / step.correction1);
  const auto root = static_cast<float>(1.0 / std::sqrt(step.correction2));
  const auto epsilon = static_cast<float>(step.epsilon);
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradients[i];
    const float m = beta1 * moment1[i] + share1 * g;
    const float v = beta2 * moment2[i] + share2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    weights[i] = weights[i] * decay - rate * m / (std::sqrt(v) * root + epsilon);
  }
}

// As torch.optim.SGD: v = momentum v + g from zeros; nesterov uses g + momentum v.
LOCKSTEP_CLONES void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count,
                         const SgdStep& step) {
  const auto rate = static_cast<float>(step.learning_rate), decay = static_cast<float>(step.weight_decay);
  const auto momentum = static_cast<float>(step.momentum);
  const bool nesterov = step.nesterov;
  if (momentum == 0) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) weights[i] -= rate * (gradients[i] + decay * weights[i]);
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradients[i] + decay * weights[i];
    const float v = momentum * velocity[i] + g;
    velocity[i] = v;
    weights[i] -= rate * (nesterov ? g + momentum * v : v);
  }
}

}  // namespace lockstep::cpu
