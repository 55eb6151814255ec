// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::record;

// A value no index has.
constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, float epsilon) {
  for (const Tensor& tensor : {x, gain, bias}) expect_dtype("layer_norm", "an argument", tensor, DType::f32);
  autograd::expect_one_device("layer_norm", x, gain, bias);
  const Shape wanted{x.shape().columns()};
  if (x.shape().dims() == 0 || gain.shape() != wanted || bias.shape() != wanted) {
    throw InvalidArgument(
        fmt::format("layer_norm: x has shape {}, so gain and bias must have shape {}, but have {} and {}; give one "
                    "value for each column of x",
                    x.shape().str(), wanted.str(), gain.shape().str(), bias.shape().str()));
  }
  const LayerNormShape shape{.rows = x.shape().rows(), .columns = x.shape().columns(), .epsilon = epsilon};
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  const Tensor mean = Tensor::empty({shape.rows}, DType::f64, x.device());
  const Tensor rstd = Tensor::empty({shape.rows}, DType::f32, x.device());
  kernels(x.device())
      .layer_norm(y.data<float>(), mean.data<double>(), rstd.data<float>(), x.data<float>(), gain.data<float>(),
                  bias.data<float>(), shape);
  record("layer_norm", y, {x, gain, bias},
         [shape, x = x.detach(), mean, rstd, gain = gain.detach()](const Tensor& gradient, GradientSink& sink) {
           const Into dgain = sink.into(1), dbias = sink.into(2), dx = sink.into(0);
           kernels(gradient.device())
               .layer_norm_backward(dx, dgain, dbias, gradient.data<float>(), x.data<float>(), mean.data<double>(),
                                    rstd.data<float>(), gain.data<float>(), shape);
         });
  return y;
}

Tensor embedding(const Tensor& table, const Tensor& indices) {
  expect_dtype("embedding", "table", table, DType::f32);
  expect_dtype("embedding", "indices", indices, DType::i64);
  autograd::expect_one_device("embedding", table, indices);
  if (table.shape().dims() != 2) {
    throw InvalidArgument(
        fmt::format("embedding: the table has shape {}, and must be [rows, channels]; give a table of two dimensions",
                    table.shape().str()));
  }
  Kernels& k = kernels(table.device());
  const auto* index = indices.data<std::int64_t>();
  k.check_indices(IndexedBy::embedding, index, indices.count(), table.size(0), kNone);
  std::vector<std::int64_t> extents(indices.shape().extents().begin(), indices.shape().extents().end());
  extents.push_back(table.size(1));
  const Tensor y = Tensor::empty(Shape(extents), DType::f32, table.device());
  k.embedding(y.data<float>(), table.data<float>(), index, indices.count(), table.size(0), table.size(1));
  record("embedding", y, {table},
         [indices, rows = table.size(0), columns = table.size(1)](const Tensor& gradient, GradientSink& sink) {
           kernels(gradient.device())
               .embedding_backward(sink.into(0), gradient.data<float>(), indices.data<std::int64_t>(), indices.count(),
                                   rows, columns);
         });
  return y;
}

Tensor causal_self_attention(const Tensor& qkv, std::int64_t heads) {
  expect_dtype("causal_self_attention", "qkv", qkv, DType::f32);
  if (qkv.shape().dims() != 3 || heads < 1 || qkv.size(2) % (3 * heads) != 0) {
    throw InvalidArgument(
        fmt::format("causal_self_attention: qkv has shape {} with {} heads; give a qkv of shape [batch, time, 3 * "
                    "channels], with channels a multiple of heads",
                    qkv.shape().str(), heads));
  }
  const std::int64_t channels = qkv.size(2) / 3;
  const AttentionShape shape{.batch = qkv.size(0), .time = qkv.size(1), .heads = heads, .head_size = channels / heads};
  const Tensor y = Tensor::empty({shape.batch, shape.time, channels}, DType::f32, qkv.device());
  const Tensor weights = Tensor::empty({shape.batch, heads, shape.time, shape.time}, DType::f32, qkv.device());
  kernels(qkv.device()).attention(y.data<float>(), weights.data<float>(), qkv.data<float>(), shape);
  record("causal_self_attention", y, {qkv},
         [shape, qkv = qkv.detach(), weights](const Tensor& gradient, GradientSink& sink) {
           kernels(gradient.device())
               .attention_backward(sink.into(0), gradient.data<float>(), weights.data<float>(), qkv.data<float>(),
                                   shape);
         });
  return y;
}

Tensor dropout(const Tensor& x, float p, const RandomSource& source) {
  expect_dtype("dropout", "x", x, DType::f32);
  if (!(p >= 0 && p < 1))
    throw InvalidArgument(fmt::format(
        "dropout: probability {} is not in [0, 1); give the part of the values to set to 0, such as 0.1", p));
  if (p == 0) return x;
  const auto samples = source.sample_ids ? static_cast<std::int64_t>(source.sample_ids->size()) : 0;
  if (samples == 0 ? x.count() != 0 : x.count() % samples != 0) {
    throw InvalidArgument(
        fmt::format("dropout: x of shape {} can't be cut into {} equal samples; give the ids of the batch's rows: "
                    "ddp(x, ids), or sample_ids of the model's set_context()",
                    x.shape().str(), samples));
  }
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  const Tensor mask = Tensor::empty(x.shape(), DType::u8, x.device());
  const float keep = 1.0f - p;
  if (samples > 0) {
    const std::int64_t* ids = source.sample_ids->data();
    Tensor moved;
    if (x.device().kind != DeviceKind::cpu) {
      moved = Tensor::of({samples}, std::span<const std::int64_t>(*source.sample_ids)).to(x.device());
      ids = moved.data<std::int64_t>();
    }
    kernels(x.device())
        .dropout(y.data<float>(), mask.data<std::uint8_t>(), x.data<float>(), source.key, ids, samples,
                 x.count() / samples, keep);
  }
  record("dropout", y, {x}, [keep, mask](const Tensor& gradient, GradientSink& sink) {
    kernels(gradient.device())
        .dropout_backward(sink.into(0), gradient.data<float>(), mask.data<std::uint8_t>(), keep, gradient.count());
  });
  return y;
}

Tensor argmax(const Tensor& x) {
  expect_dtype("argmax", "x", x, DType::f32);
  const std::int64_t columns = x.shape().columns();
  if (x.shape().dims() == 0 || columns == 0) {
    throw InvalidArgument(
        fmt::format("argmax: x is {}, and must have at least one value in the last dimension; give a tensor of shape "
                    "[rows..., classes]",
                    x.str()));
  }
  const Tensor host = x.detach().cpu();
  const auto values = host.values<float>();
  const auto extents = x.shape().extents();
  const Tensor result = Tensor::empty(Shape(extents.first(extents.size() - 1)), DType::i64);
  const auto is_less = [](float a, float b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
  for (std::int64_t row = 0; row < result.count(); ++row) {
    const auto first = values.begin() + row * columns;
    result.values<std::int64_t>()[static_cast<std::size_t>(row)] =
        std::max_element(first, first + columns, is_less) - first;
  }
  return result;
}

double accuracy(const Tensor& logits, const Tensor& targets) {
  expect_dtype("accuracy", "targets", targets, DType::i64);
  const Tensor predicted = argmax(logits), wanted = targets.detach().cpu();
  if (predicted.count() != wanted.count()) {
    throw InvalidArgument(
        fmt::format("accuracy: logits {} and targets {} do not match; give logits of shape [rows..., classes] and one "
                    "target per row",
                    logits.str(), targets.str()));
  }
  const auto ids = predicted.values<std::int64_t>(), right = wanted.values<std::int64_t>();
  std::int64_t same = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) same += ids[i] == right[i];
  return static_cast<double>(same) / static_cast<double>(ids.size());
}

}  // namespace lockstep
