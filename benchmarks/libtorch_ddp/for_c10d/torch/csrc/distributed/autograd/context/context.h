// SPDX-License-Identifier: Apache-2.0
// Debian's libtorch-dev 1.13 forgot this header, which c10d's Reducer includes and, without RPC, does not use.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
