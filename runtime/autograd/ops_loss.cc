#include <fmt/format.h>

#include "runtime/autograd/node.h"
#include "runtime/autograd/ops.h"
#include "runtime/base/error.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::Node;

struct CrossEntropyNode final : Node {
  Tensor logits, targets, largest, sums;
  std::int64_t ignore = 0;
  std::int64_t counted = 0;
  const char* name() const override { return "cross_entropy"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const Shape& shape = logits.shape();
    kernels(gradient.device())
        .cross_entropy_backward(sink.into(0), gradient.data<float>(), largest.data<float>(), sums.data<float>(),
                                logits.data<float>(), targets.data<std::int64_t>(), shape.rows(), shape.columns(),
                                ignore, counted);
  }
  void release_saved() override { logits = targets = largest = sums = {}; }
};

struct MseNode final : Node {
  Tensor a, b;
  const char* name() const override { return "mse_loss"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const KernelTable& k = kernels(gradient.device());
    const float* g = gradient.data<float>();
    if (sink.needed(0)) k.mse_backward(sink.into(0), g, a.data<float>(), b.data<float>(), 1.0f, a.count());
    if (sink.needed(1)) k.mse_backward(sink.into(1), g, a.data<float>(), b.data<float>(), -1.0f, a.count());
  }
  void release_saved() override { a = b = {}; }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  expect_dtype("cross_entropy", "logits", logits, DType::f32);
  expect_dtype("cross_entropy", "targets", targets, DType::i64);
  const std::int64_t rows = logits.shape().rows(), columns = logits.shape().columns();
  if (logits.shape().dims() < 2 || targets.count() != rows) {
    throw InvalidArgument(
        fmt::format("cross_entropy: logits {} and targets {} do not match; logits are [rows..., "
                    "classes] with one target per row",
                    logits.shape().str(), targets.shape().str()));
  }
  const KernelTable& k = kernels(logits.device());
  const auto* target = targets.data<std::int64_t>();
  const std::int64_t bad = k.first_bad_index(target, rows, columns, options.ignore_index);
  if (bad >= 0) {
    const Tensor value = targets.view_as({rows}).view_rows(bad, bad + 1).to(DeviceId{});
    throw InvalidArgument(fmt::format("cross_entropy: target {} of row {} is not in [0, {}) and not ignore_index {}",
                                      value.data<std::int64_t>()[0], bad, columns, options.ignore_index));
  }
  const Tensor loss = Tensor::empty({}, DType::f32, logits.device());
  const Tensor largest = Tensor::empty({rows}, DType::f32, logits.device());
  const Tensor sums = Tensor::empty({rows}, DType::f32, logits.device());
  const std::int64_t counted = k.cross_entropy(loss.data<float>(), largest.data<float>(), sums.data<float>(),
                                               logits.data<float>(), target, rows, columns, options.ignore_index);
  if (autograd::recording({logits})) {
    auto node = std::make_shared<CrossEntropyNode>();
    node->logits = logits.detach();
    node->targets = targets;
    node->largest = largest;
    node->sums = sums;
    node->ignore = options.ignore_index;
    node->counted = counted;
    connect(loss, std::move(node), {logits});
  }
  return loss;
}

Tensor mse_loss(const Tensor& a, const Tensor& b) {
  expect_dtype("mse_loss", "a", a, DType::f32);
  expect_dtype("mse_loss", "b", b, DType::f32);
  expect_same_shape("mse_loss", a, b);
  const Tensor loss = Tensor::empty({}, DType::f32, a.device());
  kernels(a.device()).mse(loss.data<float>(), a.data<float>(), b.data<float>(), a.count());
  if (autograd::recording({a, b})) {
    auto node = std::make_shared<MseNode>();
    node->a = a.detach();
    node->b = b.detach();
    connect(loss, std::move(node), {a, b});
  }
  return loss;
}

}  // namespace lockstep
