// SPDX-License-Identifier: Apache-2.0
// An optimizer of LibTorch's in a snapshot.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

// All names of each parameter of each group, in their order: several of a tied one.
using ParameterNames = std::vector<std::vector<std::vector<std::string>>>;

// Called whenever they are needed: groups and parameters may be added to an optimizer that is in a snapshot.
using NamesOf = std::function<ParameterNames()>;

// `name`: of the item. `optimizer` outlives it. InvalidArgument, with the item's name, for one that can't be kept.
std::shared_ptr<SnapshotItem> optimizer_item(std::string_view name, ::torch::optim::Optimizer& optimizer,
                                             NamesOf names_of);

}  // namespace lockstep::libtorch
