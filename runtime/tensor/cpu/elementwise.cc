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

constexpr float kGeluScale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

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
  store(dx, count, [=](std::int64_t i) { return y[i] > 0 ? dy[i] : 0.0f; });
}

LOCKSTEP_CLONES void tanh(float* out, const float* x, std::int64_t count) {
  store({out, false}, count, [=](std::int64_t i) { return fast_tanh(x[i]); });
}

LOCKSTEP_CLONES void tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) {
  store(dx, count, [=](std::int64_t i) { return dy[i] * (1.0f - y[i] * y[i]); });
}

LOCKSTEP_CLONES void gelu(float* out, const float* x, std::int64_t count) {
  store({out, false}, count, [=](std::int64_t i) {
    const float v = x[i];
    return 0.5f * v * (1.0f + fast_tanh(kGeluScale * (v + kGeluCube * v * v * v)));
  });
}

LOCKSTEP_CLONES void gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) {
  store(dx, count, [=](std::int64_t i) {
    const float v = x[i];
    const float t = fast_tanh(kGeluScale * (v + kGeluCube * v * v * v));
    const float slope = kGeluScale * (1.0f + 3.0f * kGeluCube * v * v);
    return dy[i] * (0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope);
  });
}

}  // namespace lockstep::cpu
