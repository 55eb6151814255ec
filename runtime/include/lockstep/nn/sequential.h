// SPDX-License-Identifier: Apache-2.0
// Layers one after the other.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

//   Sequential model{Linear(784, 256), ReLU(), Linear(256, 10)};
// Layers are named "0", "1", ...
class LOCKSTEP_API Sequential : public Module {
 public:
  Sequential() = default;
  // Not for a single Sequential, which would be a copy: append() nests one.
  template <typename First, typename... Rest>
  requires std::is_base_of_v<Module, std::decay_t<First>> &&
      (sizeof...(Rest) > 0 || !std::is_same_v<Sequential, std::decay_t<First>>)explicit Sequential(First&& first,
                                                                                                   Rest&&... rest) {
    append(std::forward<First>(first));
    (append(std::forward<Rest>(rest)), ...);
  }

  template <typename M>
  Sequential& append(M&& layer) {
    add_child(std::to_string(layers_.size()), layer);
    layers_.push_back(std::make_shared<std::decay_t<M>>(std::forward<M>(layer)));
    return *this;
  }
  std::size_t size() const { return layers_.size(); }

  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const auto& layer : layers_) y = layer->forward(y);
    return y;
  }

 private:
  std::vector<std::shared_ptr<Module>> layers_;
};

}  // namespace lockstep::nn
