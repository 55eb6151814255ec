// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::record;

// y = alpha * sum of x.
Tensor scaled_sum(const char* name, const Tensor& x, float alpha) {
  expect_dtype(name, "x", x, DType::f32);
  const Tensor y = Tensor::empty({}, DType::f32, x.device());
  kernels(x.device()).sum({y.data<float>(), false}, x.data<float>(), alpha, x.count());
  record(name, y, {x}, [alpha, count = x.count()](const Tensor& gradient, GradientSink& sink) {
    kernels(gradient.device()).expand(sink.into(0), gradient.data<float>(), alpha, count);
  });
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Tensor y = x.view_as(shape);
  record("reshape", y, {x}, [](const Tensor& gradient, GradientSink& sink) { sink.give(0, gradient); });
  return y;
}

Tensor transpose(const Tensor& x) {
  expect_dtype("transpose", "x", x, DType::f32);
  if (x.shape().dims() != 2) {
    throw InvalidArgument(fmt::format("transpose: x has shape {}, it must have two dimensions", x.shape().str()));
  }
  const Tensor y = Tensor::empty({x.size(1), x.size(0)}, DType::f32, x.device());
  kernels(x.device()).transpose({y.data<float>(), false}, x.data<float>(), x.size(0), x.size(1));
  record("transpose", y, {x}, [](const Tensor& gradient, GradientSink& sink) {
    kernels(gradient.device()).transpose(sink.into(0), gradient.data<float>(), gradient.size(0), gradient.size(1));
  });
  return y;
}

Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const Tensor y = x.view_rows(begin, end);
  const std::int64_t first = begin * x.shape().with_first(1).count();  // element of x where the rows begin
  record("rows", y, {x}, [first, total = x.count()](const Tensor& gradient, GradientSink& sink) {
    Kernels& k = kernels(gradient.device());
    const Into dx = sink.into(0);
    if (!dx.add && total > 0) k.fill(dx.data, 0.0f, total);
    k.scale({dx.data + first, true}, gradient.data<float>(), 1.0f, gradient.count());
  });
  return y;
}

Tensor repeat(const Tensor& x, std::int64_t times) {
  expect_dtype("repeat", "x", x, DType::f32);
  std::vector<std::int64_t> extents{times};
  extents.insert(extents.end(), x.shape().extents().begin(), x.shape().extents().end());
  const Tensor y = Tensor::zeros(Shape(extents), DType::f32, x.device());
  kernels(x.device()).add_row(y.data<float>(), y.data<float>(), x.data<float>(), times, x.count());
  record("repeat", y, {x}, [count = x.count()](const Tensor& gradient, GradientSink& sink) {
    kernels(gradient.device()).sum_rows(sink.into(0), gradient.data<float>(), gradient.size(0), count);
  });
  return y;
}

Tensor sum(const Tensor& x) { return scaled_sum("sum", x, 1.0f); }
Tensor mean(const Tensor& x) {
  return scaled_sum("mean", x, x.count() == 0 ? 0.0f : static_cast<float>(1.0 / static_cast<double>(x.count())));
}

}  // namespace lockstep
