// SPDX-License-Identifier: Apache-2.0
// The side of a Tensor that lockstep's own code works on: the graph that made it, the memory of its gradient, and who
// sums that gradient over the ranks.
//
//   TensorInternals(parameter).bind_grad(slice);
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

class ShardedUpdate;

// The operation that made a tensor, as far as this room knows it: autograd derives its nodes from it.
class GraphNode {
 public:
  virtual ~GraphNode() = default;
};

class TensorInternals {
 public:
  // The tensor outlives this object. InvalidArgument from every call for an undefined one.
  explicit TensorInternals(const Tensor& tensor) : tensor_(tensor) {}

  // Uses `memory` (same count, f32, same device) for the gradient from now on: what lies there counts as the gradient.
  void bind_grad(const Tensor& memory) const;
  // The same over a plain address, for DDP: a slice of the Reducer's arena. The caller keeps it alive until the next
  // bind_grad or unbind_grad.
  void bind_grad(float* memory) const;
  void unbind_grad() const;
  // The memory to write a gradient to (made if there is none), with the shape of the tensor. The gradient counts as
  // there afterwards.
  Tensor grad_for_writing() const;

  // For DDP, while it sums this leaf's gradient over ranks: lockstep::backward(loss) calls `backward`, which outlives
  // the hold.
  using LossBackward = std::function<void(const Tensor& loss)>;
  void hold_grad(const LossBackward& backward) const;
  void release_grad(const LossBackward& backward) const;
  // The calls that hold it, from the first.
  const std::vector<const LossBackward*>& grad_holders() const;
  // The update of this leaf in shards of the ranks; null: each rank updates all of it. The update outlives the leaf's
  // use of it.
  void set_sharded_update(ShardedUpdate* update) const;
  ShardedUpdate* sharded_update() const;

  const std::shared_ptr<GraphNode>& node() const;
  void set_node(std::shared_ptr<GraphNode> node) const;

 private:
  const Tensor& tensor_;
};

}  // namespace lockstep
