// SPDX-License-Identifier: Apache-2.0
// Functions that read the graph of a forward, and that add nodes to it.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lockstep::libtorch {

// In which order will gradients become ready? The engine's own order, as on one CPU thread: a node runs when all that
// lead to it have, the one made last first, and a leaf at once. Leaves are given by their gradient accumulators and
// come out by number; those that `outputs` do not lead to are left out. Nodes inside a function that runs a backward of
// its own are not seen.
std::vector<int> graph_order(std::span<const at::Tensor> outputs,
                             const std::unordered_map<const ::torch::autograd::Node*, int>& leaves);

// Called when backward comes to the output, on its thread; returns the factor by which to multiply the gradient.
using OnEnter = std::function<double()>;

// Adds a node and returns the same values in the same memory. The result is not a view in autograd's sense: it may be
// changed in place as the output itself might have been. Does nothing for an output that needs no gradient.
at::Tensor behind_boundary(const at::Tensor& output, OnEnter on_enter);

}  // namespace lockstep::libtorch
