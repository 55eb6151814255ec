// SPDX-License-Identifier: Apache-2.0
// In which order will gradients become ready? Read off the graph that a forward has built.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <span>
#include <unordered_map>
#include <vector>

namespace lockstep::libtorch {

// The engine's own order, as on one CPU thread: a node runs when all that lead to it have, the one made last first, and
// a leaf at once. Leaves are given by their gradient accumulators and come out by number; those that `outputs` do not
// lead to are left out. Nodes inside a function that runs a backward of its own are not seen.
std::vector<int> graph_order(std::span<const at::Tensor> outputs,
                             const std::unordered_map<const ::torch::autograd::Node*, int>& leaves);

}  // namespace lockstep::libtorch
