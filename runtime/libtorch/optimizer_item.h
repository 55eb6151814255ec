// SPDX-License-Identifier: Apache-2.0
// An optimizer of LibTorch's in a snapshot.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

// All names of each parameter of each group, in their order: several of a tied one.
using ParameterNames = std::vector<std::vector<std::vector<std::string>>>;

// `name`: of the item. `optimizer` outlives it. InvalidArgument, with the item's name, for one that can't be kept.
std::shared_ptr<SnapshotItem> optimizer_item(std::string_view name, ::torch::optim::Optimizer& optimizer,
                                             ParameterNames names);

}  // namespace lockstep::libtorch
