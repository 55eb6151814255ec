// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cpu/cpu_kernels.h"
#include "runtime/tensor/cpu/vector_math.h"

// Each loop promises that its iterations are independent: inputs and output are the same elements or do not overlap.
namespace lockstep::cpu {
namespace {

// out[i] (+)= f(i).
template <typename F>
LOCKSTEP_INLINE void store(Into out, std::int64_t count, const F& f) {
  float* data = out.data;
  if (out.add) {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) data[i] += f(i);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) data[i] = f(i);
  }
}

// gelu(x) = x / (1 + exp(-z)), z = s (x + c x^3): 0.5 (1 + tanh(z / 2)) without the cancellation where tanh is near -1.
constexpr float kGeluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

LOCKSTEP_INLINE float gelu_exponent(float x) { return -kGeluScale * (x + kGeluCube * x * x * x); }

}  // namespace

LOCKSTEP_CLONES void fill(float* out, float value, std::int64_t count) {
  store({out, false}, count, [=](std::int64_t) { return value; });
}

LOCKSTEP_CLONES void add(Into out, const float* a, const float* b, std::int64_t count) {
  store(out, count, [=](std::int64_t i) { return a[i] + b[i]; });
}

LOCKSTEP_CLONES void multiply(Into out, const float* a, const float* b, std::int64_t count) {
  store(out, count, [=](std::int64_t i) { return a[i] * b[i]; });
}

LOCKSTEP_CLONES void scale(Into out, const float* a, float alpha, std::int64_t count) {
  store(out, count, [=](std::int64_t i) { return alpha * a[i]; });
}

LOCKSTEP_CLONES void expand(Into out, const float* scalar, float alpha, std::int64_t count) {
  const float value = alpha * *scalar;
  store(out, count, [=](std::int64_t) { return value; });
}

LOCKSTEP_CLONES void relu(float* out, const float* x, std::int64_t count) {
  // Written so that NaN stays NaN.
  store({out, false}, count, [=](std::int64_t i) { return x[i] < 0 ? 0.0f : x[i]; });
}

LOCKSTEP_CLONES void relu_backward(Into dx, const float* y, const float* dy, std::int64_t count) {
  // Asked this way round, a NaN lets the gradient pass, as in PyTorch.
  store(dx, count, [=](std::int64_t i) { return y[i] <= 0 ? 0.0f : dy[i]; });
}

LOCKSTEP_CLONES void tanh(float* out, const float* x, std::int64_t count) {
  store({out, false}, count, [=](std::int64_t i) { return fast_tanh(x[i]); });
}

LOCKSTEP_CLONES void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) {
  store(dx, count, [=](std::int64_t i) { return dy[i] * (1.0f - y[i] * y[i]); });
}

LOCKSTEP_CLONES void gelu(float* out, const float* x, std::int64_t count) {
  store({out, false}, count, [=](std::int64_t i) { return x[i] / (1.0f + fast_exp_normal(gelu_exponent(x[i]))); });
}

LOCKSTEP_CLONES void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) {
  store(dx, count, [=](std::int64_t i) {
    // From 10 on the derivative is 1 or 0, and its parts would overflow. x - x is NaN for infinities, as the derivative
    // is in PyTorch.
    float v = x[i] < -10.0f ? -10.0f : x[i];
    v = (v > 10.0f ? 10.0f : v) + (x[i] - x[i]);
    const float e = fast_exp_within(gelu_exponent(v));
    const float s = 1.0f / (1.0f + e);
    const float slope = kGeluScale * (1.0f + 3.0f * kGeluCube * v * v);
    return dy[i] * (s + v * s * (e * s) * slope);
  });
}

}  // namespace lockstep::cpu
