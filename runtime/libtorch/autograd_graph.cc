// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/autograd_graph.h"

#include <ATen/Operators.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <queue>
#include <utility>

#include "runtime/libtorch/node.h"

namespace lockstep::libtorch {

using ::torch::autograd::Edge;
using ::torch::autograd::Node;

std::vector<int> graph_order(std::span<const at::Tensor> outputs, const std::unordered_map<const Node*, int>& leaves) {
  std::unordered_map<Node*, int> waits_for;  // edges that lead to a node, from nodes that run
  std::vector<Node*> open;
  std::vector<Node*> roots;
  const auto reach = [&](Node* node) {
    if (waits_for.try_emplace(node, 0).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    Node* root = ::torch::autograd::impl::gradient_edge(output).function.get();
    if (root == nullptr) continue;
    roots.push_back(root);
    reach(root);
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      reach(edge.function.get());
      ++waits_for[edge.function.get()];
    }
  }

  const auto runs_later = [](const Node* a, const Node* b) { return a->sequence_nr() < b->sequence_nr(); };
  std::priority_queue<Node*, std::vector<Node*>, decltype(runs_later)> ready(runs_later);
  for (Node* root : roots) {
    if (waits_for[root] != 0) continue;
    ready.push(root);
    waits_for[root] = -1;  // an output that is there twice runs once
  }
  std::vector<int> order;
  while (!ready.empty()) {
    Node* node = ready.top();
    ready.pop();
    if (const auto leaf = leaves.find(node); leaf != leaves.end()) order.push_back(leaf->second);
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid() && --waits_for[edge.function.get()] == 0) ready.push(edge.function.get());
    }
  }
  return order;
}

namespace {

struct Boundary : ::torch::autograd::Node {
  explicit Boundary(OnEnter enter) : on_enter(std::move(enter)) {}

  ::torch::autograd::variable_list apply(::torch::autograd::variable_list&& gradients) override {
    const double factor = on_enter();
    if (factor != 1.0 && gradients[0].defined()) gradients[0] = gradients[0] * factor;
    return std::move(gradients);
  }
  std::string name() const override { return "LockstepBoundary"; }

  OnEnter on_enter;
};

}  // namespace

at::Tensor behind_boundary(const at::Tensor& output, OnEnter on_enter) {
  if (!output.defined() || !output.requires_grad()) return output;
  const auto node = make_node<Boundary>(std::move(on_enter));
  node->set_next_edges({::torch::autograd::impl::gradient_edge(output)});
  at::Tensor result = output.detach();
  // Without this torch would refuse squeeze_() and its like, which the output itself allows.
  result.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  ::torch::autograd::set_history(result, node);
  return result;
}

}  // namespace lockstep::libtorch
