// SPDX-License-Identifier: Apache-2.0
#include "lockstep/autograd/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "runtime/autograd/node.h"
#include "runtime/tensor/sharded_update.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep {
namespace {

using autograd::Edge;
using autograd::GradientSink;
using autograd::Node;

// A tape in the order backward takes it: every node after all nodes that used its result.
struct Walk {
  std::vector<std::shared_ptr<Node>> nodes;
  std::unordered_map<const void*, int> leaf_uses;  // by Tensor::id
};

Walk plan(const char* operation, const Tensor& loss) {
  if (loss.count() != 1) {
    throw InvalidArgument(fmt::format(
        "{}: the loss is {}, and must have exactly one element; take mean() or sum() first", operation, loss.str()));
  }
  if (!TensorInternals(loss).node()) {
    throw InvalidArgument(
        fmt::format("{}: the loss depends on no tensor that requires a gradient, or was computed under NoGrad; compute "
                    "it outside NoGrad from trained parameters. Gradients themselves have no graph (no create_graph): "
                    "to train a penalty on gradients, use LibTorch",
                    operation));
  }
  // Depth first, inputs before users; then turned round. No counter is needed to know the order of recording.
  struct Frame {
    std::shared_ptr<Node> node;
    std::size_t next = 0;
  };
  Walk walk;
  std::unordered_map<const Node*, bool> seen;
  std::vector<Frame> stack;
  const auto visit = [&](std::shared_ptr<Node> node) {
    if (!seen.emplace(node.get(), true).second) return;
    if (node->freed()) {
      throw InvalidArgument(
          fmt::format("{}: the graph of this loss was freed at '{}' by an earlier backward; run the forward again, or "
                      "pass .retain_graph = true to the first backward",
                      operation, node->name()));
    }
    stack.push_back({std::move(node)});
  };
  visit(std::static_pointer_cast<Node>(TensorInternals(loss).node()));
  while (!stack.empty()) {
    Frame& frame = stack.back();
    const std::vector<Edge>& inputs = frame.node->inputs();
    if (frame.next < inputs.size()) {
      const Edge& edge = inputs[frame.next++];
      if (edge.leaf) ++walk.leaf_uses[edge.leaf.id()];
      if (edge.node) visit(edge.node);  // may move the frame
    } else {
      walk.nodes.push_back(std::move(frame.node));
      stack.pop_back();
    }
  }
  std::reverse(walk.nodes.begin(), walk.nodes.end());
  return walk;
}

// Gradients of results that are on their way to the node that made them.
using Pending = std::unordered_map<const Node*, Tensor>;

class Sink final : public GradientSink {
 public:
  Sink(const Node& node, Pending& pending, std::unordered_map<const void*, bool>& written, bool accumulate)
      : node_(node), pending_(pending), written_(written), accumulate_(accumulate) {}

  bool needed(std::size_t input) const override {
    return input < node_.inputs().size() && node_.inputs()[input].needed();
  }

  Into into(std::size_t input) override {
    const Edge& edge = node_.inputs()[input];
    if (edge.leaf) return into_leaf(edge.leaf);
    if (!edge.node) return {};
    Tensor& gradient = pending_[edge.node.get()];
    if (!gradient) {
      gradient = Tensor::empty(edge.shape, DType::f32, device_);
      return {gradient.data<float>(), false};
    }
    make_own(gradient);
    return {gradient.data<float>(), true};
  }

  void give(std::size_t input, const Tensor& given) override {
    const Edge& edge = node_.inputs()[input];
    if (edge.node) {
      Tensor& gradient = pending_[edge.node.get()];
      if (!gradient) {
        gradient = given.view_as(edge.shape);
        return;
      }
    }
    if (!edge.needed()) return;
    const Into target = into(input);
    kernels(given.device()).scale(target, given.data<float>(), 1.0f, given.count());
  }

  void set_device(DeviceId device) { device_ = device; }

 private:
  Into into_leaf(const Tensor& leaf) {
    const bool first = written_.emplace(leaf.id(), true).second;
    if (first && leaf.has_grad()) refuse_shards(leaf);
    const bool add = first ? accumulate_ && leaf.has_grad() : true;
    const Tensor gradient = TensorInternals(leaf).grad_for_writing();
    return {gradient.data<float>(), add};
  }

  // Equal replicas would hide what this rank alone adds to its shard.
  static void refuse_shards(const Tensor& leaf) {
    const ShardedUpdate* const update = TensorInternals(leaf).sharded_update();
    if (update == nullptr || update->holds() != ShardedUpdate::Holds::shards) return;
    throw InvalidArgument(
        fmt::format("backward: the loss depends on a parameter {} of another DistributedDataParallel with "
                    "Shard::optimizer, and this parameter's gradient still waits for a step; call step() of that "
                    "model's optimizer first, or set_requires_grad(false) on that model's parameters for this backward",
                    leaf.str()));
  }

  // Memory that was given may be somebody else's too: then adding to it needs a copy.
  static void make_own(Tensor& gradient) {
    if (!gradient.shares_memory()) return;
    gradient = gradient.clone();
  }

  const Node& node_;
  Pending& pending_;
  std::unordered_map<const void*, bool>& written_;
  bool accumulate_;
  DeviceId device_;
};

// Frees the rest of a tape, however backward ends.
class FreeAtEnd {
 public:
  FreeAtEnd(Walk& walk, bool active) : walk_(walk), active_(active) {}
  ~FreeAtEnd() {
    if (!active_) return;
    for (const auto& node : walk_.nodes) {
      if (node) node->free();
    }
  }
  FreeAtEnd(const FreeAtEnd&) = delete;
  FreeAtEnd& operator=(const FreeAtEnd&) = delete;

 private:
  Walk& walk_;
  bool active_;
};

// Calls on_final(leaf) for each leaf of `node` that has no other use left.
template <typename F>
void settle(const Node& node, std::unordered_map<const void*, int>& uses, const F& on_final) {
  for (const Edge& edge : node.inputs()) {
    if (edge.leaf && --uses.at(edge.leaf.id()) == 0) on_final(edge.leaf);
  }
}

// The holder that sums the gradients of this walk over the ranks; null if no leaf has a holder. Refuses a gradient that
// the walk would leave on one rank alone: the replicas would differ after the optimizer's step.
const TensorInternals::LossBackward* holder_of(const Walk& walk, bool is_plain) {
  const TensorInternals::LossBackward* holder = nullptr;
  for (const auto& node : walk.nodes) {
    for (const Edge& edge : node->inputs()) {
      if (!edge.leaf || TensorInternals(edge.leaf).grad_holders().empty()) continue;
      const auto& holders = TensorInternals(edge.leaf).grad_holders();
      if (is_plain && holders.size() == 1 && (holder == nullptr || holder == holders[0])) {
        holder = holders[0];
        continue;
      }
      throw InvalidArgument(fmt::format(
          "backward: the loss depends on a parameter {} of a DistributedDataParallel, and its gradient would not be "
          "averaged; call ddp.backward(loss) without a seed or options, on a loss that was computed from ddp(x)",
          edge.leaf.str()));
    }
  }
  return holder;
}

}  // namespace

void backward(const Tensor& loss, float seed, const BackwardOptions& options) {
  Walk walk = plan("backward", loss);
  if (!options.into_held) {
    const bool is_plain = seed == 1 && options.accumulate && !options.retain_graph && !options.on_leaf_ready;
    if (const TensorInternals::LossBackward* const holder = holder_of(walk, is_plain)) {
      walk = {};  // the holder's own walk frees the tape
      return (*holder)(loss);
    }
  }
  const FreeAtEnd free_at_end(walk, !options.retain_graph);
  const NoGrad no_grad;
  Pending pending;
  std::unordered_map<const void*, bool> written;
  pending[walk.nodes.front().get()] = Tensor::full(loss.shape(), seed, loss.device());
  for (std::shared_ptr<Node>& node : walk.nodes) {
    const auto found = pending.find(node.get());
    // Reached by edges, but no gradient came: everything between gave none.
    if (found == pending.end())
      throw Error(
          fmt::format("backward: the operation '{}' got no gradient from the operations that used its result; this is "
                      "a bug in lockstep: report it with the program's forward",
                      node->name()));
    {
      const Tensor gradient = std::move(found->second);
      pending.erase(found);
      Sink sink(*node, pending, written, options.accumulate);
      sink.set_device(gradient.device());
      node->backward(gradient, sink);
    }
    std::vector<Tensor> final;
    settle(*node, walk.leaf_uses, [&](const Tensor& leaf) { final.push_back(leaf); });
    if (!options.retain_graph) {
      node->free();
      node.reset();
    }
    if (options.on_leaf_ready) {
      for (const Tensor& leaf : final) options.on_leaf_ready(leaf);
    }
  }
}

std::vector<Tensor> ready_order(const Tensor& loss) {
  Walk walk = plan("ready_order", loss);
  std::vector<Tensor> order;
  for (const auto& node : walk.nodes) {
    settle(*node, walk.leaf_uses, [&](const Tensor& leaf) { order.push_back(leaf); });
  }
  return order;
}

}  // namespace lockstep
