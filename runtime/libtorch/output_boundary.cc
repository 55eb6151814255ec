// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/output_boundary.h"

#include <ATen/Operators.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "runtime/libtorch/node.h"

namespace lockstep::libtorch {
namespace {

struct Boundary : ::torch::autograd::Node {
  explicit Boundary(OnEnter enter) : on_enter(std::move(enter)) {}

  ::torch::autograd::variable_list apply(::torch::autograd::variable_list&& gradients) override {
    const double factor = on_enter();
    if (factor != 1.0 && gradients[0].defined()) gradients[0] = gradients[0] * factor;
    return std::move(gradients);
  }
  std::string name() const override { return "LockstepBoundary"; }

  OnEnter on_enter;
};

}  // namespace

at::Tensor behind_boundary(const at::Tensor& output, OnEnter on_enter) {
  if (!output.defined() || !output.requires_grad()) return output;
  const auto node = make_node<Boundary>(std::move(on_enter));
  node->set_next_edges({::torch::autograd::impl::gradient_edge(output)});
  at::Tensor result = output.detach();
  // Without this torch would refuse squeeze_() and its like, which the output itself allows.
  result.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  ::torch::autograd::set_history(result, node);
  return result;
}

}  // namespace lockstep::libtorch
