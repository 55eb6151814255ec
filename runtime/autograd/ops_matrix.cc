#include <fmt/format.h>

#include "runtime/autograd/node.h"
#include "runtime/autograd/ops.h"
#include "runtime/base/error.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::Node;

// y [rows, out] = x [rows, in] * weight [in, out], plus a row if there is a third input.
struct LinearNode final : Node {
  const char* title;
  std::int64_t rows, in, out;
  Tensor x, weight;
  LinearNode(const char* operation, const Tensor& input, const Tensor& w)
      : title(operation),
        rows(input.shape().rows()),
        in(w.size(0)),
        out(w.size(1)),
        x(input.detach()),
        weight(w.detach()) {}
  const char* name() const override { return title; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const KernelTable& k = kernels(gradient.device());
    const float* dy = gradient.data<float>();
    // Parameters first: their bucket can leave while dx is computed.
    if (inputs().size() > 2 && sink.needed(2)) k.sum_rows(sink.into(2), dy, rows, out);
    if (sink.needed(1)) {
      k.gemm({.transpose_a = true,
              .rows = in,
              .columns = out,
              .inner = rows,
              .a = x.data<float>(),
              .lda = in,
              .b = dy,
              .ldb = out,
              .c = sink.into(1),
              .ldc = out});
    }
    if (sink.needed(0)) {
      k.gemm({.transpose_b = true,
              .rows = rows,
              .columns = in,
              .inner = out,
              .a = dy,
              .lda = out,
              .b = weight.data<float>(),
              .ldb = out,
              .c = sink.into(0),
              .ldc = in});
    }
  }
  void release_saved() override { x = weight = {}; }
};

Tensor product(const Tensor& x, const Tensor& weight) {
  const std::int64_t rows = x.shape().rows(), in = weight.size(0), out = weight.size(1);
  const Tensor y = Tensor::empty(x.shape().with_last(out), DType::f32, x.device());
  kernels(x.device())
      .gemm({.rows = rows,
             .columns = out,
             .inner = in,
             .a = x.data<float>(),
             .lda = in,
             .b = weight.data<float>(),
             .ldb = out,
             .c = {y.data<float>(), false},
             .ldc = out});
  return y;
}

void expect_product(const char* name, const Tensor& x, const Tensor& weight) {
  expect_dtype(name, "the left factor", x, DType::f32);
  expect_dtype(name, "the right factor", weight, DType::f32);
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
  if (autograd::recording({a, b})) connect(y, std::make_shared<LinearNode>("matmul", a, b), {a, b});
  return y;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  expect_product("linear", x, weight);
  if (!bias) return matmul(x, weight);
  expect_dtype("linear", "bias", bias, DType::f32);
  if (bias.shape() != Shape{weight.size(1)}) {
    throw InvalidArgument(fmt::format("linear: the bias of a weight {} has shape {}, it must be [{}]",
                                      weight.shape().str(), bias.shape().str(), weight.size(1)));
  }
  const Tensor y = product(x, weight);
  kernels(x.device()).add_row(y.data<float>(), y.data<float>(), bias.data<float>(), y.shape().rows(), y.size(-1));
  if (autograd::recording({x, weight, bias})) {
    connect(y, std::make_shared<LinearNode>("linear", x, weight), {x, weight, bias});
  }
  return y;
}

}  // namespace lockstep
