// One operation on the tape: what its result was made from, and how a gradient goes back.
//
// Internal to autograd; a new operation derives from Node (ops.cc and its neighbours show how).
#pragma once

#include <memory>
#include <vector>

#include "runtime/tensor/kernels.h"
#include "runtime/tensor/tensor.h"

namespace lockstep::autograd {

class Node;

// What a node was made from: a leaf, another node's result, or neither if no gradient is wanted there.
struct Edge {
  Shape shape;
  Tensor leaf;
  std::shared_ptr<Node> node;

  bool needed() const { return leaf.defined() || node != nullptr; }
};

// Where a node's backward puts its inputs' gradients. Each input is given to at most once per walk of the node.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // False for inputs whose gradient nobody wants: don't compute it.
  virtual bool needed(std::size_t input) const = 0;
  // Memory for the gradient of this input, and whether to add to it. data is null if it isn't needed.
  virtual Into into(std::size_t input) = 0;
  // The gradient is there already, as a tensor of as many elements: it is shared where it can be, added where it must.
  virtual void give(std::size_t input, const Tensor& gradient) = 0;
};

class Node : public GraphNode {
 public:
  ~Node() override;

  // The operation's name, for messages.
  virtual const char* name() const = 0;
  // `gradient` has the shape of the result. Called once per walk, after all uses of the result were walked.
  virtual void backward(const Tensor& gradient, GradientSink& sink) = 0;
  // Drops the saved tensors.
  virtual void release_saved() = 0;

  const std::vector<Edge>& inputs() const { return inputs_; }
  // Edges and saved tensors go; walking this node again is an error.
  void free();
  bool freed() const { return freed_; }

 private:
  friend void connect(const Tensor& result, std::shared_ptr<Node> node, std::initializer_list<Tensor> inputs);

  std::vector<Edge> inputs_;
  bool freed_ = false;
};

// True if an operation over these inputs must be recorded: recording is on and one of them requires a gradient.
bool recording(std::initializer_list<Tensor> inputs);

// Puts `node` on the tape as what made `result`.
void connect(const Tensor& result, std::shared_ptr<Node> node, std::initializer_list<Tensor> inputs);

}  // namespace lockstep::autograd
