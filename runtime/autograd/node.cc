// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/node.h"

#include <fmt/format.h>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/error.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep {
namespace {

// Per thread, so that a loader thread or another world of this process is not concerned by somebody's NoGrad.
thread_local bool enabled = true;

}  // namespace

bool grad_enabled() { return enabled; }
NoGrad::NoGrad() : before_(enabled) { enabled = false; }
NoGrad::~NoGrad() { enabled = before_; }

namespace autograd {

void throw_apart(const char* operation, DeviceId first, DeviceId other) {
  throw InvalidArgument(
      fmt::format("{}: one tensor is on {} and another on {}; all must be on one device: move them with to()",
                  operation, first.str(), other.str()));
}

bool recording(std::initializer_list<Tensor> inputs) {
  if (!enabled) return false;
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) return true;
  }
  return false;
}

Node::Node(const char* name, std::initializer_list<Tensor> inputs, Backward backward)
    : name_(name), backward_(std::move(backward)) {
  inputs_.reserve(inputs.size());
  for (const Tensor& input : inputs) {
    Edge edge;
    if (input.defined()) {
      edge.shape = input.shape();
      if (TensorInternals(input).node()) {
        edge.node = std::static_pointer_cast<Node>(TensorInternals(input).node());
      } else if (input.requires_grad()) {
        edge.leaf = input;
      }
    }
    inputs_.push_back(std::move(edge));
  }
}

Node::~Node() {
  // A tape dropped without backward is a long chain: taken apart in a loop, not by recursion.
  std::vector<std::shared_ptr<Node>> pending;
  for (Edge& edge : inputs_) {
    if (edge.node) pending.push_back(std::move(edge.node));
  }
  while (!pending.empty()) {
    const std::shared_ptr<Node> node = std::move(pending.back());
    pending.pop_back();
    if (node.use_count() > 1) continue;
    for (Edge& edge : node->inputs_) {
      if (edge.node) pending.push_back(std::move(edge.node));
    }
  }
}

void Node::free() {
  backward_ = nullptr;
  inputs_.clear();
}

}  // namespace autograd
}  // namespace lockstep
