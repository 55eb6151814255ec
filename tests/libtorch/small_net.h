// SPDX-License-Identifier: Apache-2.0
// A net of two layers in a row and one beside them, its rows, and its gradients in one process.
#pragma once

#include <functional>
#include <vector>

#include "tests/libtorch/common.h"

namespace models {

namespace nn = torch::nn;

struct Net : nn::Module {
  nn::Linear a = register_module("a", nn::Linear(4, 6));
  nn::Linear b = register_module("b", nn::Linear(6, 3));
  nn::Linear side = register_module("side", nn::Linear(4, 3));
  bool use_side = true;
  std::function<torch::Tensor(const torch::Tensor&)> after_b = [](const torch::Tensor& y) { return y; };
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = after_b(b(torch::tanh(a(x))));
    return use_side ? y + side(x) : y;
  }
};

}  // namespace models

namespace lockstep::testing {

using models::Net;

inline at::Tensor rows(int rank, std::int64_t count) {
  return random_tensor({count, 4}, static_cast<std::uint64_t>(rank) + 40);
}

inline libtorch::DdpOptions many_buckets() { return {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}}; }

// body(net, ddp) on each of `ranks`, all of which begin with the same weights.
template <typename Module = Net, typename Body>
void on_ranks(int ranks, const libtorch::DdpOptions& options, const Body& body) {
  run_torch_ranks(ranks, [&](const Group& group) {
    Module net;
    initialize(net, 1);
    libtorch::DistributedDataParallel<Module> ddp(net, group, options);
    body(net, ddp);
  });
}

// What one process has on the rows of all ranks, `count` of rank r being counts[r].
inline Tensors gradients_alone(const std::vector<std::int64_t>& counts,
                               const std::function<at::Tensor(Net&, at::Tensor)>& loss) {
  Net net;
  initialize(net, 1);
  std::vector<at::Tensor> all;
  for (std::size_t r = 0; r < counts.size(); ++r) all.push_back(rows(static_cast<int>(r), counts[r]));
  loss(net, at::cat(all)).backward();
  return gradients_of(net);
}

inline at::Tensor squares(const at::Tensor& y) { return y.square().mean(); }

}  // namespace lockstep::testing
