// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"

namespace lockstep::cuda {
namespace {

// Memory is the limit, so a thread moves four floats at once where all spans begin at a multiple of 16 bytes (`fours`).
template <typename F>
__global__ void map0(Span<float> out, bool add, bool fours, F f) {
  const std::int64_t wide = fours ? out.count / 4 : 0;
  const float value = f();
  for_each(wide, [&](std::int64_t i) {
    Four o{value, value, value, value};
    if (add) {
      const Four old = load4(out, 4 * i);
      o = {old.x + value, old.y + value, old.z + value, old.w + value};
    }
    store4(out, 4 * i, o);
  });
  for_each(out.count - 4 * wide, [&](std::int64_t i) { put(out, add, 4 * wide + i, value); });
}

template <typename F>
__global__ void map1(Span<float> out, bool add, bool fours, Span<const float> a, F f) {
  const std::int64_t wide = fours ? out.count / 4 : 0;
  for_each(wide, [&](std::int64_t i) {
    const Four x = load4(a, 4 * i);
    Four o{f(x.x), f(x.y), f(x.z), f(x.w)};
    if (add) {
      const Four old = load4(out, 4 * i);
      o = {old.x + o.x, old.y + o.y, old.z + o.z, old.w + o.w};
    }
    store4(out, 4 * i, o);
  });
  for_each(out.count - 4 * wide, [&](std::int64_t i) { put(out, add, 4 * wide + i, f(a[4 * wide + i])); });
}

template <typename F>
__global__ void map2(Span<float> out, bool add, bool fours, Span<const float> a, Span<const float> b, F f) {
  const std::int64_t wide = fours ? out.count / 4 : 0;
  for_each(wide, [&](std::int64_t i) {
    const Four x = load4(a, 4 * i), y = load4(b, 4 * i);
    Four o{f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w)};
    if (add) {
      const Four old = load4(out, 4 * i);
      o = {old.x + o.x, old.y + o.y, old.z + o.z, old.w + o.w};
    }
    store4(out, 4 * i, o);
  });
  for_each(out.count - 4 * wide,
           [&](std::int64_t i) { put(out, add, 4 * wide + i, f(a[4 * wide + i], b[4 * wide + i])); });
}

struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};
struct Sum2 {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Product2 {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct Scaled {
  float alpha;
  __device__ float operator()(float a) const { return alpha * a; }
};
struct Relu {
  // Written so that NaN stays NaN.
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x; }
};
struct ReluBackward {
  // Asked this way round, a NaN lets the gradient pass, as in PyTorch.
  __device__ float operator()(float y, float dy) const { return y <= 0 ? 0.0f : dy; }
};
struct Tanh {
  __device__ float operator()(float x) const { return tanhf(x); }
};
struct TanhBackward {
  __device__ float operator()(float y, float dy) const { return dy * (1.0f - y * y); }
};

// gelu(x) = x / (1 + exp(-z)), z = s (x + c x^3): 0.5 (1 + tanh(z / 2)) without the cancellation where tanh is near -1.
constexpr float kGeluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

__device__ __forceinline__ float gelu_exponent(float x) { return -kGeluScale * (x + kGeluCube * x * x * x); }

struct Gelu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(gelu_exponent(x))); }
};
struct GeluBackward {
  __device__ float operator()(float x, float dy) const {
    // From 10 on the derivative is 1 or 0, and its parts would overflow. x - x is NaN for infinities, as the derivative
    // is in PyTorch.
    float v = x < -10.0f ? -10.0f : x;
    v = (v > 10.0f ? 10.0f : v) + (x - x);
    const float e = expf(gelu_exponent(v));
    const float s = 1.0f / (1.0f + e);
    const float slope = kGeluScale * (1.0f + 3.0f * kGeluCube * v * v);
    return dy * (s + v * s * (e * s) * slope);
  }
};

__global__ void expand_kernel(Span<float> out, bool add, Span<const float> scalar, float alpha) {
  const float value = alpha * scalar[0];
  for_each(out.count, [&](std::int64_t i) { put(out, add, i, value); });
}

__global__ void scale_by_kernel(Span<float> data, Span<const float> factor) {
  const float by = factor[0];
  if (by == 1) return;
  for_each(
      data.count, [&](std::int64_t i) { return data[i] * by; },
      [&](std::int64_t i, float value) { data.set(i, value); });
}

const Kernel kFill("fill", map0<Constant>);
const Kernel kAdd("add", map2<Sum2>);
const Kernel kMultiply("multiply", map2<Product2>);
const Kernel kScale("scale", map1<Scaled>);
const Kernel kRelu("relu", map1<Relu>);
const Kernel kReluBackward("relu_backward", map2<ReluBackward>);
const Kernel kTanh("tanh", map1<Tanh>);
const Kernel kTanhBackward("tanh_backward", map2<TanhBackward>);
const Kernel kGelu("gelu", map1<Gelu>);
const Kernel kGeluBackward("gelu_backward", map2<GeluBackward>);
const Kernel kExpand("expand", expand_kernel);
const Kernel kScaleBy("scale_by", scale_by_kernel);

template <typename... Pointers>
bool all_by_fours(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

std::int64_t blocks_of(std::int64_t count, bool fours) { return parts_of(count, kThreads * (fours ? 4 : 1)); }

template <typename K, typename F>
void launch1(const Launch& launch, const K& kernel, Into out, const float* a, std::int64_t count, F f) {
  if (count == 0) return;
  const bool fours = all_by_fours(out.data, a);
  launch(kernel, blocks_of(count, fours), writes(out.data, count), out.add, fours, reads(a, count), f);
}

template <typename K, typename F>
void launch2(const Launch& launch, const K& kernel, Into out, const float* a, const float* b, std::int64_t count, F f) {
  if (count == 0) return;
  const bool fours = all_by_fours(out.data, a, b);
  launch(kernel, blocks_of(count, fours), writes(out.data, count), out.add, fours, reads(a, count), reads(b, count), f);
}

}  // namespace

void CudaKernels::fill(float* out, float value, std::int64_t count) {
  if (count == 0) return;
  const bool fours = all_by_fours(out);
  (*launch_)(kFill, blocks_of(count, fours), writes(out, count), false, fours, Constant{value});
}
void CudaKernels::add(Into out, const float* a, const float* b, std::int64_t count) {
  launch2(*launch_, kAdd, out, a, b, count, Sum2{});
}
void CudaKernels::multiply(Into out, const float* a, const float* b, std::int64_t count) {
  launch2(*launch_, kMultiply, out, a, b, count, Product2{});
}
void CudaKernels::scale(Into out, const float* a, float alpha, std::int64_t count) {
  launch1(*launch_, kScale, out, a, count, Scaled{alpha});
}
void CudaKernels::relu(float* out, const float* x, std::int64_t count) {
  launch1(*launch_, kRelu, {out, false}, x, count, Relu{});
}
void CudaKernels::relu_backward(Into dx, const float* y, const float* dy, std::int64_t count) {
  launch2(*launch_, kReluBackward, dx, y, dy, count, ReluBackward{});
}
void CudaKernels::tanh(float* out, const float* x, std::int64_t count) {
  launch1(*launch_, kTanh, {out, false}, x, count, Tanh{});
}
void CudaKernels::tanh_backward(Into dx, const float* y, const float* dy, std::int64_t count) {
  launch2(*launch_, kTanhBackward, dx, y, dy, count, TanhBackward{});
}
void CudaKernels::gelu(float* out, const float* x, std::int64_t count) {
  launch1(*launch_, kGelu, {out, false}, x, count, Gelu{});
}
void CudaKernels::gelu_backward(Into dx, const float* x, const float* dy, std::int64_t count) {
  launch2(*launch_, kGeluBackward, dx, x, dy, count, GeluBackward{});
}
void CudaKernels::expand(Into out, const float* scalar, float alpha, std::int64_t count) {
  if (count == 0) return;
  (*launch_)(kExpand, blocks_of(count, false), writes(out.data, count), out.add, reads(scalar, 1), alpha);
}
void CudaKernels::scale_by(float* data, const float* factor, std::int64_t count) {
  if (count == 0) return;
  (*launch_)(kScaleBy, blocks_of(count, false), writes(data, count), reads(factor, 1));
}

}  // namespace lockstep::cuda
