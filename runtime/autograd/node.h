// SPDX-License-Identifier: Apache-2.0
// One operation on the tape: the inputs of its result, and the way of a gradient back to them.
//
// Internal to autograd; a new operation computes its result and record()s the way back (ops_shape.cc shows how).
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep::autograd {

class Node;

// An input of a node: a leaf, another node's result, or neither if no gradient is wanted there.
struct Edge {
  Shape shape;
  Tensor leaf;
  std::shared_ptr<Node> node;

  bool needed() const { return leaf.defined() || node != nullptr; }
};

// Takes the gradients that a node's backward computes for its inputs. Each input gets at most one per walk of the node.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // False for inputs whose gradient nobody wants, and for inputs that the operation lacks: don't compute the gradient
  // then.
  virtual bool needed(std::size_t input) const = 0;
  // Memory for the gradient of this input, and whether to add to it. data is null if it isn't needed.
  virtual Into into(std::size_t input) = 0;
  // Takes a gradient that exists already, as a tensor of as many elements: shares it where possible, else adds it.
  virtual void give(std::size_t input, const Tensor& gradient) = 0;
};

// The way back through one operation. `gradient` has the shape of the result. The tensors that it needs are saved in
// it: detached, or the tape would hold itself. Called once per walk, after all uses of the result were walked.
using Backward = std::function<void(const Tensor& gradient, GradientSink& sink)>;

class Node final : public GraphNode {
 public:
  Node(const char* name, std::initializer_list<Tensor> inputs, Backward backward);
  ~Node() override;

  // The operation's name, for messages. The text outlives the node.
  const char* name() const { return name_; }
  void backward(const Tensor& gradient, GradientSink& sink) const { backward_(gradient, sink); }
  const std::vector<Edge>& inputs() const { return inputs_; }
  // Edges and saved tensors go; walking this node again is an error.
  void free();
  bool freed() const { return backward_ == nullptr; }

 private:
  const char* name_;
  std::vector<Edge> inputs_;
  Backward backward_;
};

[[noreturn]] void throw_apart(const char* operation, DeviceId first, DeviceId other);
// InvalidArgument if a tensor is on another device than the first.
template <typename... Others>
void expect_one_device(const char* operation, const Tensor& first, const Others&... others) {
  const auto expect = [&](DeviceId other) {
    if (other != first.device()) throw_apart(operation, first.device(), other);
  };
  (expect(others.device()), ...);
}

// True if an operation over these inputs must be recorded: recording is on and one of them requires a gradient.
bool recording(std::initializer_list<Tensor> inputs);

// Puts the operation that made `result` from `inputs` on the tape, if it must be recorded.
template <typename Back>
void record(const char* name, const Tensor& result, std::initializer_list<Tensor> inputs, Back&& backward) {
  if (recording(inputs))
    TensorInternals(result).set_node(std::make_shared<Node>(name, inputs, std::forward<Back>(backward)));
}

}  // namespace lockstep::autograd
