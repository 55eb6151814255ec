// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"

namespace lockstep {
using autograd::GradientSink;
using autograd::record;

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  expect_dtype("cross_entropy", "logits", logits, DType::f32);
  expect_dtype("cross_entropy", "targets", targets, DType::i64);
  autograd::expect_one_device("cross_entropy", logits, targets);
  const std::int64_t rows = logits.shape().rows(), columns = logits.shape().columns();
  if (logits.shape().dims() < 2 || targets.count() != rows) {
    throw InvalidArgument(
        fmt::format("cross_entropy: logits {} and targets {} do not match; logits are [rows..., "
                    "classes] with one target per row",
                    logits.shape().str(), targets.shape().str()));
  }
  Kernels& k = kernels(logits.device());
  const auto* target = targets.data<std::int64_t>();
  k.check_indices(IndexedBy::cross_entropy, target, rows, columns, options.ignore_index);
  const Tensor loss = Tensor::empty({}, DType::f32, logits.device());
  const Tensor largest = Tensor::empty({rows}, DType::f32, logits.device());
  const Tensor sums = Tensor::empty({rows}, DType::f32, logits.device());
  const Tensor counted = Tensor::empty({}, DType::i64, logits.device());
  k.cross_entropy(loss.data<float>(), counted.data<std::int64_t>(), largest.data<float>(), sums.data<float>(),
                  logits.data<float>(), target, rows, columns, options.ignore_index);
  record("cross_entropy", loss, {logits},
         [logits = logits.detach(), targets, largest, sums, ignore = options.ignore_index, counted](
             const Tensor& gradient, GradientSink& sink) {
           const Shape& shape = logits.shape();
           kernels(gradient.device())
               .cross_entropy_backward(sink.into(0), gradient.data<float>(), counted.data<std::int64_t>(),
                                       largest.data<float>(), sums.data<float>(), logits.data<float>(),
                                       targets.data<std::int64_t>(), shape.rows(), shape.columns(), ignore);
         });
  return loss;
}

Tensor mse_loss(const Tensor& a, const Tensor& b) {
  expect_dtype("mse_loss", "a", a, DType::f32);
  expect_dtype("mse_loss", "b", b, DType::f32);
  autograd::expect_one_device("mse_loss", a, b);
  expect_same_shape("mse_loss", a, b);
  const Tensor loss = Tensor::empty({}, DType::f32, a.device());
  kernels(a.device()).mse(loss.data<float>(), a.data<float>(), b.data<float>(), a.count());
  record("mse_loss", loss, {a, b}, [a = a.detach(), b = b.detach()](const Tensor& gradient, GradientSink& sink) {
    Kernels& k = kernels(gradient.device());
    const float* g = gradient.data<float>();
    if (sink.needed(0)) k.mse_backward(sink.into(0), g, a.data<float>(), b.data<float>(), 1.0f, a.count());
    if (sink.needed(1)) k.mse_backward(sink.into(1), g, a.data<float>(), b.data<float>(), -1.0f, a.count());
  });
  return loss;
}

}  // namespace lockstep
