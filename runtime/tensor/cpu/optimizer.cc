#include <cmath>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {

// Loshchilov & Hutter, arXiv:1711.05101, algorithm 2, with the schedule multiplier inside the learning rate, as
// PyTorch.
LOCKSTEP_CLONES void adamw(float* weights, const float* gradients, float* moment1, float* moment2, std::int64_t count,
                           const AdamWStep& step) {
  const float decay = 1.0f - step.learning_rate * step.weight_decay;
  const float rate = step.learning_rate / step.correction1;
  const float root = 1.0f / std::sqrt(step.correction2);
  const float beta1 = step.beta1, beta2 = step.beta2, epsilon = step.epsilon;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradients[i];
    const float m = beta1 * moment1[i] + (1.0f - beta1) * g;
    const float v = beta2 * moment2[i] + (1.0f - beta2) * g * g;
    moment1[i] = m;
    moment2[i] = v;
    weights[i] = weights[i] * decay - rate * m / (std::sqrt(v) * root + epsilon);
  }
}

// As torch.optim.SGD: v = momentum v + g from zeros; nesterov uses g + momentum v.
LOCKSTEP_CLONES void sgd(float* weights, const float* gradients, float* velocity, std::int64_t count,
                         const SgdStep& step) {
  const float rate = step.learning_rate, decay = step.weight_decay, momentum = step.momentum;
  if (momentum == 0) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) weights[i] -= rate * (gradients[i] + decay * weights[i]);
    return;
  }
  const float gradient_share = step.nesterov ? 1.0f : 0.0f;
  const float velocity_share = step.nesterov ? momentum : 1.0f;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradients[i] + decay * weights[i];
    const float v = momentum * velocity[i] + g;
    velocity[i] = v;
    weights[i] -= rate * (gradient_share * g + velocity_share * v);
  }
}

}  // namespace lockstep::cpu
