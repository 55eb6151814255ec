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
    throw InvalidArgument(fmt::format(
        "add_row: x has shape {}, so row must have shape [{}], but has {}; give one value for each column of x",
        x.shape().str(), x.shape().columns(), row.shape().str()));
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

using autograd::GradientSink;
using autograd::record;

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  expect_dtype("cross_entropy", "logits", logits, DType::f32);
  expect_dtype("cross_entropy", "targets", targets, DType::i64);
  autograd::expect_one_device("cross_entropy", logits, targets);
  const std::int64_t rows = logits.shape().rows(), columns = logits.shape().columns();
  if (logits.shape().dims() < 2 || targets.count() != rows) {
    throw InvalidArgument(
        fmt::format("cross_entropy: logits {} and targets {} do not match; give logits of shape [rows..., classes] and "
                    "one target per row",
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
    throw InvalidArgument(
        fmt::format("transpose: x has shape {}, and must have two dimensions; change the shape with reshape() first",
                    x.shape().str()));
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
        fmt::format("{}: shapes {} and {} can't be multiplied; give as the second a matrix with as many rows as the "
                    "last dimension of the first has elements",
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
    throw InvalidArgument(
        fmt::format("linear: the weight has shape {} and the bias {}, but the bias must have shape [{}]; give one "
                    "value for each column of the weight",
                    weight.shape().str(), bias.shape().str(), weight.size(1)));
  }
  const Tensor y = product(x, weight);
  kernels(x.device()).add_row(y.data<float>(), y.data<float>(), bias.data<float>(), y.shape().rows(), y.size(-1));
  record("linear", y, {x, weight, bias}, product_backward(x, weight));
  return y;
}

}  // namespace lockstep
