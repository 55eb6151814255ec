// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::record;

// Functions of one element whose derivative is a function of their input or their output.
using Forward = void (Kernels::*)(float*, const float*, std::int64_t);
using Backward = void (Kernels::*)(Into, const float*, const float*, std::int64_t);
enum class Saves { input, output };

Tensor unary(const char* name, const Tensor& x, Forward forward, Backward backward, Saves saves) {
  expect_dtype(name, "x", x, DType::f32);
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  (kernels(x.device()).*forward)(y.data<float>(), x.data<float>(), x.count());
  record(name, y, {x},
         [backward, saved = (saves == Saves::input ? x : y).detach()](const Tensor& gradient, GradientSink& sink) {
           Kernels& k = kernels(gradient.device());
           (k.*backward)(sink.into(0), saved.data<float>(), gradient.data<float>(), gradient.count());
         });
  return y;
}

void expect_pair(const char* name, const Tensor& a, const Tensor& b) {
  expect_dtype(name, "a", a, DType::f32);
  expect_dtype(name, "b", b, DType::f32);
  autograd::expect_one_device(name, a, b);
  expect_same_shape(name, a, b);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  expect_pair("add", a, b);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).add({y.data<float>(), false}, a.data<float>(), b.data<float>(), y.count());
  record("add", y, {a, b}, [](const Tensor& gradient, GradientSink& sink) {
    sink.give(0, gradient);
    sink.give(1, gradient);
  });
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  expect_pair("sub", a, b);
  const Tensor y = a.clone();
  kernels(a.device()).scale({y.data<float>(), true}, b.data<float>(), -1.0f, y.count());
  record("sub", y, {a, b}, [](const Tensor& gradient, GradientSink& sink) {
    sink.give(0, gradient);
    if (!sink.needed(1)) return;
    kernels(gradient.device()).scale(sink.into(1), gradient.data<float>(), -1.0f, gradient.count());
  });
  return y;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  expect_pair("mul", a, b);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).multiply({y.data<float>(), false}, a.data<float>(), b.data<float>(), y.count());
  record("mul", y, {a, b}, [a = a.detach(), b = b.detach()](const Tensor& gradient, GradientSink& sink) {
    Kernels& k = kernels(gradient.device());
    const float* g = gradient.data<float>();
    if (sink.needed(0)) k.multiply(sink.into(0), g, b.data<float>(), gradient.count());
    if (sink.needed(1)) k.multiply(sink.into(1), g, a.data<float>(), gradient.count());
  });
  return y;
}

Tensor scale(const Tensor& a, float factor) {
  expect_dtype("scale", "a", a, DType::f32);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).scale({y.data<float>(), false}, a.data<float>(), factor, y.count());
  record("scale", y, {a}, [factor](const Tensor& gradient, GradientSink& sink) {
    kernels(gradient.device()).scale(sink.into(0), gradient.data<float>(), factor, gradient.count());
  });
  return y;
}

Tensor relu(const Tensor& x) { return unary("relu", x, &Kernels::relu, &Kernels::relu_backward, Saves::output); }
Tensor tanh(const Tensor& x) { return unary("tanh", x, &Kernels::tanh, &Kernels::tanh_backward, Saves::output); }
Tensor gelu(const Tensor& x) { return unary("gelu", x, &Kernels::gelu, &Kernels::gelu_backward, Saves::input); }

Tensor add_row(const Tensor& x, const Tensor& row) {
  expect_dtype("add_row", "x", x, DType::f32);
  expect_dtype("add_row", "row", row, DType::f32);
  autograd::expect_one_device("add_row", x, row);
  if (row.shape() != Shape{x.shape().columns()}) {
    throw InvalidArgument(fmt::format("add_row: x {} needs a row of shape [{}], got {}", x.shape().str(),
                                      x.shape().columns(), row.shape().str()));
  }
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  kernels(x.device())
      .add_row(y.data<float>(), x.data<float>(), row.data<float>(), x.shape().rows(), x.shape().columns());
  record("add_row", y, {x, row}, [](const Tensor& gradient, GradientSink& sink) {
    sink.give(0, gradient);
    if (!sink.needed(1)) return;
    const Shape& shape = gradient.shape();
    kernels(gradient.device()).sum_rows(sink.into(1), gradient.data<float>(), shape.rows(), shape.columns());
  });
  return y;
}

}  // namespace lockstep
