#include <fmt/format.h>

#include "runtime/autograd/node.h"
#include "runtime/autograd/ops.h"
#include "runtime/base/error.h"

namespace lockstep {
namespace {

using autograd::GradientSink;
using autograd::Node;

struct AddNode final : Node {
  float b_sign;
  explicit AddNode(float sign) : b_sign(sign) {}
  const char* name() const override { return b_sign > 0 ? "add" : "sub"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    sink.give(0, gradient);
    if (b_sign > 0) {
      sink.give(1, gradient);
    } else if (sink.needed(1)) {
      kernels(gradient.device()).scale(sink.into(1), gradient.data<float>(), b_sign, gradient.count());
    }
  }
  void release_saved() override {}
};

struct MulNode final : Node {
  Tensor a, b;
  MulNode(const Tensor& x, const Tensor& y) : a(x.detach()), b(y.detach()) {}
  const char* name() const override { return "mul"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const KernelTable& k = kernels(gradient.device());
    const float* g = gradient.data<float>();
    if (sink.needed(0)) k.multiply(sink.into(0), g, b.data<float>(), gradient.count());
    if (sink.needed(1)) k.multiply(sink.into(1), g, a.data<float>(), gradient.count());
  }
  void release_saved() override { a = b = {}; }
};

struct ScaleNode final : Node {
  float factor;
  explicit ScaleNode(float f) : factor(f) {}
  const char* name() const override { return "scale"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    kernels(gradient.device()).scale(sink.into(0), gradient.data<float>(), factor, gradient.count());
  }
  void release_saved() override {}
};

struct AddRowNode final : Node {
  const char* name() const override { return "add_row"; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    sink.give(0, gradient);
    if (!sink.needed(1)) return;
    const Shape& shape = gradient.shape();
    kernels(gradient.device()).sum_rows(sink.into(1), gradient.data<float>(), shape.rows(), shape.columns());
  }
  void release_saved() override {}
};

// Functions of one element whose derivative is a function of `saved`: their input or their output.
using Forward = void (*KernelTable::*)(float*, const float*, std::int64_t);
using Backward = void (*KernelTable::*)(Into, const float*, const float*, std::int64_t);
struct UnaryNode final : Node {
  const char* title;
  Backward way_back;
  Tensor saved;
  UnaryNode(const char* operation, Backward backward, const Tensor& tensor)
      : title(operation), way_back(backward), saved(tensor.detach()) {}
  const char* name() const override { return title; }
  void backward(const Tensor& gradient, GradientSink& sink) override {
    const KernelTable& k = kernels(gradient.device());
    (k.*way_back)(sink.into(0), saved.data<float>(), gradient.data<float>(), gradient.count());
  }
  void release_saved() override { saved = {}; }
};

enum class Saves { input, output };

Tensor unary(const char* name, const Tensor& x, Forward forward, Backward backward, Saves saves) {
  expect_dtype(name, "x", x, DType::f32);
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  (kernels(x.device()).*forward)(y.data<float>(), x.data<float>(), x.count());
  if (autograd::recording({x})) {
    connect(y, std::make_shared<UnaryNode>(name, backward, saves == Saves::input ? x : y), {x});
  }
  return y;
}

void expect_pair(const char* name, const Tensor& a, const Tensor& b) {
  expect_dtype(name, "a", a, DType::f32);
  expect_dtype(name, "b", b, DType::f32);
  expect_same_shape(name, a, b);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  expect_pair("add", a, b);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).add({y.data<float>(), false}, a.data<float>(), b.data<float>(), y.count());
  if (autograd::recording({a, b})) connect(y, std::make_shared<AddNode>(1.0f), {a, b});
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  expect_pair("sub", a, b);
  const Tensor y = a.clone();
  kernels(a.device()).scale({y.data<float>(), true}, b.data<float>(), -1.0f, y.count());
  if (autograd::recording({a, b})) connect(y, std::make_shared<AddNode>(-1.0f), {a, b});
  return y;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  expect_pair("mul", a, b);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).multiply({y.data<float>(), false}, a.data<float>(), b.data<float>(), y.count());
  if (autograd::recording({a, b})) connect(y, std::make_shared<MulNode>(a, b), {a, b});
  return y;
}

Tensor scale(const Tensor& a, float factor) {
  expect_dtype("scale", "a", a, DType::f32);
  const Tensor y = Tensor::empty(a.shape(), DType::f32, a.device());
  kernels(a.device()).scale({y.data<float>(), false}, a.data<float>(), factor, y.count());
  if (autograd::recording({a})) connect(y, std::make_shared<ScaleNode>(factor), {a});
  return y;
}

Tensor relu(const Tensor& x) {
  return unary("relu", x, &KernelTable::relu, &KernelTable::relu_backward, Saves::output);
}
Tensor tanh(const Tensor& x) {
  return unary("tanh", x, &KernelTable::tanh, &KernelTable::tanh_backward, Saves::output);
}
Tensor gelu(const Tensor& x) { return unary("gelu", x, &KernelTable::gelu, &KernelTable::gelu_backward, Saves::input); }

Tensor add_row(const Tensor& x, const Tensor& row) {
  expect_dtype("add_row", "x", x, DType::f32);
  expect_dtype("add_row", "row", row, DType::f32);
  if (row.shape() != Shape{x.shape().columns()}) {
    throw InvalidArgument(fmt::format("add_row: x {} needs a row of shape [{}], got {}", x.shape().str(),
                                      x.shape().columns(), row.shape().str()));
  }
  const Tensor y = Tensor::empty(x.shape(), DType::f32, x.device());
  kernels(x.device())
      .add_row(y.data<float>(), x.data<float>(), row.data<float>(), x.shape().rows(), x.shape().columns());
  if (autograd::recording({x, row})) connect(y, std::make_shared<AddRowNode>(), {x, row});
  return y;
}

}  // namespace lockstep
