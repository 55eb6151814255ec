#include <fmt/format.h>

#include "runtime/autograd/node.h"
#include "runtime/autograd/ops.h"
#include "runtime/base/error.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::Node;

struct ReshapeNode final : Node {
  const char* name() const override { return "reshape"; }
  void backward(const Tensor& gradient, GradientSink& sink) override { sink.give(0, gradient); }
  void release_saved() override {}
};

struct TransposeNode final : Node {
  const char* name() const override { return "transpose"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    kernels(gradient.device()).transpose(sink.into(0), gradient.data<float>(), gradient.size(0), gradient.size(1));
  }
  void release_saved() override {}
};

struct RowsNode final : Node {
  std::int64_t first;  // element of x where the rows begin
  explicit RowsNode(std::int64_t element) : first(element) {}
  const char* name() const override { return "rows"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const KernelTable& k = kernels(gradient.device());
    const std::int64_t total = inputs()[0].shape.count();
    const Into dx = sink.into(0);
    if (!dx.add && total > 0) k.zero(dx.data, static_cast<std::size_t>(total) * sizeof(float));
    k.scale({dx.data + first, true}, gradient.data<float>(), 1.0f, gradient.count());
  }
  void release_saved() override {}
};

struct RepeatNode final : Node {
  const char* name() const override { return "repeat"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    kernels(gradient.device())
        .sum_rows(sink.into(0), gradient.data<float>(), gradient.size(0), inputs()[0].shape.count());
  }
  void release_saved() override {}
};

// y = alpha * sum of x.
struct SumNode final : Node {
  float alpha;
  explicit SumNode(float factor) : alpha(factor) {}
  const char* name() const override { return "sum"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    kernels(gradient.device()).expand(sink.into(0), gradient.data<float>(), alpha, inputs()[0].shape.count());
  }
  void release_saved() override {}
};

Tensor scaled_sum(const char* name, const Tensor& x, float alpha) {
  expect_dtype(name, "x", x, DType::f32);
  const Tensor y = Tensor::empty({}, DType::f32, x.device());
  kernels(x.device()).sum({y.data<float>(), false}, x.data<float>(), alpha, x.count());
  if (autograd::recording({x})) connect(y, std::make_shared<SumNode>(alpha), {x});
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Tensor y = x.view_as(shape);
  if (autograd::recording({x})) connect(y, std::make_shared<ReshapeNode>(), {x});
  return y;
}

Tensor transpose(const Tensor& x) {
  expect_dtype("transpose", "x", x, DType::f32);
  if (x.shape().dims() != 2) {
    throw InvalidArgument(fmt::format("transpose: x has shape {}, it must have two dimensions", x.shape().str()));
  }
  const Tensor y = Tensor::empty({x.size(1), x.size(0)}, DType::f32, x.device());
  kernels(x.device()).transpose({y.data<float>(), false}, x.data<float>(), x.size(0), x.size(1));
  if (autograd::recording({x})) connect(y, std::make_shared<TransposeNode>(), {x});
  return y;
}

Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const Tensor y = x.view_rows(begin, end);
  if (autograd::recording({x})) {
    connect(y, std::make_shared<RowsNode>(begin * x.shape().with_first(1).count()), {x});
  }
  return y;
}

Tensor repeat(const Tensor& x, std::int64_t times) {
  expect_dtype("repeat", "x", x, DType::f32);
  std::vector<std::int64_t> extents{times};
  extents.insert(extents.end(), x.shape().extents().begin(), x.shape().extents().end());
  const Tensor y = Tensor::zeros(Shape(extents), DType::f32, x.device());
  kernels(x.device()).add_row(y.data<float>(), y.data<float>(), x.data<float>(), times, x.count());
  if (autograd::recording({x})) connect(y, std::make_shared<RepeatNode>(), {x});
  return y;
}

Tensor sum(const Tensor& x) { return scaled_sum("sum", x, 1.0f); }
Tensor mean(const Tensor& x) {
  return scaled_sum("mean", x, x.count() == 0 ? 0.0f : static_cast<float>(1.0 / static_cast<double>(x.count())));
}

}  // namespace lockstep
