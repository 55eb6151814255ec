// SPDX-License-Identifier: Apache-2.0
// An optimizer of LibTorch's in a snapshot.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/snapshot/item.h"

namespace lockstep::libtorch {

// `names`: of each group's parameters, in their order. `optimizer` outlives it.
std::shared_ptr<SnapshotItem> optimizer_item(::torch::optim::Optimizer& optimizer,
                                             std::vector<std::vector<std::string>> names);

}  // namespace lockstep::libtorch
