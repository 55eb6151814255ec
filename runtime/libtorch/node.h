// SPDX-License-Identifier: Apache-2.0
// A node of autograd's graph, which LibTorch counts references to in another way in 2.x.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace lockstep::libtorch {

// std::shared_ptr or c10::intrusive_ptr, of ::torch::autograd::Node.
using NodePtr = decltype(::torch::autograd::Edge::function);

template <typename T, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<::torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace lockstep::libtorch
