// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::record;

// The way back through y [rows, out] = x [rows, in] * weight [in, out], plus a row if there is a third input.
auto product_backward(const Tensor& input, const Tensor& matrix) {
  return [x = input.detach(), weight = matrix.detach()](const Tensor& gradient, GradientSink& sink) {
    const std::int64_t rows = x.shape().rows(), in = weight.size(0), out = weight.size(1);
    Kernels& k = kernels(gradient.device());
    const float* dy = gradient.data<float>();
    // Parameters first: their bucket can leave while dx is computed.
    if (sink.needed(2)) k.sum_rows(sink.into(2), dy, rows, out);
    if (sink.needed(1)) {
      k.gemm({.rows = in,
              .columns = out,
              .inner = rows,
              .a = {.data = x.data<float>(), .stride = in, .transposed = true},
              .b = {dy, out},
              .c = sink.into(1),
              .ldc = out});
    }
    if (sink.needed(0)) {
      k.gemm({.rows = rows,
              .columns = in,
              .inner = out,
              .a = {dy, out},
              .b = {.data = weight.data<float>(), .stride = out, .transposed = true},
              .c = sink.into(0),
              .ldc = in});
    }
  };
}

Tensor product(const Tensor& x, const Tensor& weight) {
  const std::int64_t rows = x.shape().rows(), in = weight.size(0), out = weight.size(1);
  const Tensor y = Tensor::empty(x.shape().with_last(out), DType::f32, x.device());
  kernels(x.device())
      .gemm({.rows = rows,
             .columns = out,
             .inner = in,
             .a = {x.data<float>(), in},
             .b = {weight.data<float>(), out},
             .c = {y.data<float>(), false},
             .ldc = out});
  return y;
}

void expect_product(const char* name, const Tensor& x, const Tensor& weight) {
  expect_dtype(name, "the left factor", x, DType::f32);
  expect_dtype(name, "the right factor", weight, DType::f32);
  autograd::expect_one_device(name, x, weight);
  if (weight.shape().dims() != 2 || x.shape().dims() == 0 || x.size(-1) != weight.size(0)) {
    throw InvalidArgument(
        fmt::format("{}: shapes {} and {} do not multiply; the last dimension of the first must be "
                    "the first of a matrix",
                    name, x.shape().str(), weight.shape().str()));
  }
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  expect_product("matmul", a, b);
  const Tensor y = product(a, b);
  record("matmul", y, {a, b}, product_backward(a, b));
  return y;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  expect_product("linear", x, weight);
  if (!bias) return matmul(x, weight);
  expect_dtype("linear", "bias", bias, DType::f32);
  autograd::expect_one_device("linear", x, bias);
  if (bias.shape() != Shape{weight.size(1)}) {
    throw InvalidArgument(fmt::format("linear: the bias of a weight {} has shape {}, it must be [{}]",
                                      weight.shape().str(), bias.shape().str(), weight.size(1)));
  }
  const Tensor y = product(x, weight);
  kernels(x.device()).add_row(y.data<float>(), y.data<float>(), bias.data<float>(), y.shape().rows(), y.size(-1));
  record("linear", y, {x, weight, bias}, product_backward(x, weight));
  return y;
}

}  // namespace lockstep
