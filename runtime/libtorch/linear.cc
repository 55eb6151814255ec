// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/linear.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <utility>

#include "runtime/device/not_finite.h"
#include "runtime/libtorch/node.h"
#include "runtime/libtorch/trained_module.h"

namespace lockstep::libtorch {
namespace {

using ::torch::autograd::SavedVariable;
using ::torch::autograd::variable_list;

::torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() ? ::torch::autograd::impl::gradient_edge(tensor)
                                                    : ::torch::autograd::Edge();
}

// Whether a gradient of `weight` may have a place. Otherwise torch's own operator serves: also within a scope of
// autocast, which excludes its key outside of scopes, and for tangents of forward-mode differentiation.
bool may_have_place(const at::Tensor& weight, const at::Tensor& input) {
  return at::GradMode::is_enabled() && weight.defined() && weight.dim() == 2 && weight.is_cpu() &&
         (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kDouble) && weight.is_contiguous() &&
         weight.numel() > 0 && weight.requires_grad() && weight.is_leaf() &&
         c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU) && !input._fw_grad(0).defined() &&
         !weight._fw_grad(0).defined() && TrainedModule::is_trained(weight);
}

// The parameter that `weight` is, or is the transpose of: at::linear(x, parameter.t()). The transpose is left out of
// the graph, so it must have been in it, and nobody else may see its gradient.
at::Tensor parameter_of(const at::Tensor& weight) {
  if (!weight.defined() || !weight.is_view() || weight.dim() != 2) return weight;
  const at::Tensor parameter(weight._base());
  const bool is_transpose =
      weight.requires_grad() && parameter.dim() == 2 && parameter.is_leaf() && parameter.is_contiguous() &&
      weight.data_ptr() == parameter.data_ptr() && weight.sizes() == parameter.t().sizes() && weight.stride(0) == 1 &&
      weight.stride(1) == weight.size(0) && !weight.retains_grad() && ::torch::autograd::impl::hooks(weight).empty();
  return is_transpose ? parameter : weight;
}

double largest(const at::Tensor& values) {
  const at::Tensor dense = values.is_non_overlapping_and_dense() ? values : values.contiguous();
  return largest_magnitude(dense.data_ptr(), dense.numel(),
                           dense.scalar_type() == at::kFloat ? DType::f32 : DType::f64);
}

// Whether no sum of `count` products of a value of each tensor is NaN or infinite, also if `gradient`, which has these
// sums, is multiplied by kLargestFactor. False if it is quicker to look at the gradient. This proof takes the place of
// the look: each sum is at most `count` times the largest value of `a` times that of `b`, a factor of 2 leaves room for
// rounding.
bool are_finite(const at::Tensor& gradient, std::int64_t count, const at::Tensor& a, const at::Tensor& b) {
  if (count == 0 || a.numel() + b.numel() > gradient.numel() / 4) return false;
  const double most =
      gradient.scalar_type() == at::kFloat ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  // False for NaN.
  return largest(a) * largest(b) < most / (2 * kLargestFactor * static_cast<double>(count));
}

struct LinearBackward : ::torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    if (!gradients[0].defined()) return results;
    const at::Tensor x = input.unpack();
    const at::Tensor w = is_transposed ? parameter.unpack().t() : parameter.unpack();  // [out, in]
    const at::Tensor dy = gradients[0].reshape({-1, w.size(0)});
    if (should_compute_output(0)) results[0] = dy.mm(w).view_as(x);
    if (should_compute_output(1)) {
      const at::Tensor rows = x.reshape({-1, w.size(1)});
      const at::Tensor& left = is_transposed ? rows : dy;
      const at::Tensor& right = is_transposed ? dy : rows;
      at::Tensor place = TrainedModule::gradient_place(next_edge(1).function.get());
      results[1] = place.defined() ? at::mm_out(place, left.t(), right) : left.t().mm(right);
      TrainedModule::tell_finite(next_edge(1).function.get(), results[1],
                                 [&] { return are_finite(results[1], rows.size(0), left, right); });
    }
    if (should_compute_output(2)) results[2] = dy.sum(0);
    return results;
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    input.reset_data();
    parameter.reset_data();
  }
  std::string name() const override { return "LockstepLinearBackward"; }

  SavedVariable input, parameter;
  bool is_transposed = false;
};

// Adds each row of `from` to the row of `to` that `indices` names, in their order, as torch does.
template <typename T>
void add_rows(const at::Tensor& to, const at::Tensor& indices, const at::Tensor& from) {
  const std::int64_t width = to.size(1);
  T* const rows = to.data_ptr<T>();
  const T* const added = from.data_ptr<T>();
  const std::int64_t* const numbers = indices.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    T* const row = rows + numbers[i] * width;
    for (std::int64_t j = 0; j < width; ++j) row[j] += added[i * width + j];
  }
}

struct EmbeddingBackward : ::torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined() || !should_compute_output(0)) return variable_list(1);
    const at::Tensor numbers = indices.unpack();
    at::Tensor place = TrainedModule::gradient_place(next_edge(0).function.get());
    if (!place.defined()) return {at::embedding_dense_backward(gradients[0], numbers, rows, -1, false)};
    place.zero_();
    const at::Tensor flat = numbers.to(at::kLong).contiguous();
    const at::Tensor dy = gradients[0].contiguous();
    if (place.scalar_type() == at::kFloat) {
      add_rows<float>(place, flat, dy);
    } else {
      add_rows<double>(place, flat, dy);
    }
    return {place};
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    indices.reset_data();
  }
  std::string name() const override { return "LockstepEmbeddingBackward"; }

  SavedVariable indices;
  std::int64_t rows = 0;
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor parameter = parameter_of(weight);
  if (!may_have_place(parameter, input) || (bias.defined() && bias._fw_grad(0).defined())) {
    return at::linear(input, weight, bias);
  }
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = at::linear(input, weight, bias);
  }
  const auto node = make_node<LinearBackward>();
  node->input = SavedVariable(input, /*is_output=*/false);
  node->parameter = SavedVariable(parameter, /*is_output=*/false);
  node->is_transposed = !parameter.is_same(weight);
  node->set_next_edges({edge_of(input), edge_of(parameter), edge_of(bias)});
  ::torch::autograd::set_history(output, node);
  return output;
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices) {
  if (!may_have_place(weight, indices)) return at::embedding(weight, indices);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = at::embedding(weight, indices);
  }
  const auto node = make_node<EmbeddingBackward>();
  node->indices = SavedVariable(indices, /*is_output=*/false);
  node->rows = weight.size(0);
  node->set_next_edges({edge_of(weight)});
  ::torch::autograd::set_history(output, node);
  return output;
}

}  // namespace lockstep::libtorch
