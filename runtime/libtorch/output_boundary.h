// SPDX-License-Identifier: Apache-2.0
// The point at which backward enters a replica: a node of the graph between the module's outputs and the user's loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace lockstep::libtorch {

// Called when backward comes to the output, on its thread; returns the factor by which to multiply the gradient.
using OnEnter = std::function<double()>;

// The same values in the same memory, behind one more node. The result is not a view in autograd's sense: it may be
// changed in place as the output itself might have been. Does nothing for an output that needs no gradient.
at::Tensor behind_boundary(const at::Tensor& output, OnEnter on_enter);

}  // namespace lockstep::libtorch
