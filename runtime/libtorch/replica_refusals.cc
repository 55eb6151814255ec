// SPDX-License-Identifier: Apache-2.0
// A replica's refusals: a module that has changed since it was wrapped, and gradients that can't be averaged.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "runtime/base/logging.h"
#include "runtime/libtorch/replica_impl.h"

namespace lockstep::libtorch {

void ReplicaImpl::refuse_changed(const ::torch::nn::Module& module) {
  refuse_thawed_or_converted();
  std::vector<const void*> parts = parts_of(module);
  if (parts == parts_) return;
  refuse_replaced(module);
  parts_ = std::move(parts);
}

void ReplicaImpl::refuse_thawed_or_converted() const {
  for (const auto& [name, tensor, is_parameter] : frozen_) {
    if (tensor.requires_grad()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' was frozen when the module was wrapped and requires a gradient "
                      "now, which nobody would average; wrap the module again",
                      name));
    }
  }
  for (const Parameter& parameter : parameters_) {
    // torch makes another accumulator for a parameter whose dtype or device changes; that one has no hook.
    if (::torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) != parameter.accumulator) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' has been converted or moved since the module was wrapped, and "
                      "nobody would average its gradient; wrap the module again",
                      parameter.name));
    }
  }
}

void ReplicaImpl::refuse_replaced(const ::torch::nn::Module& module) const {
  const auto refuse_late = [](const ::torch::nn::Module& candidate, const std::string& name) {
    const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&candidate);
    if (norm == nullptr || norm->is_joined()) return;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: the SyncBatchNorm '{}' has come into the module since it was wrapped, and "
        "knows neither its group nor what this rank's loss weighs; convert first, then wrap",
        name));
  };
  for (const auto& child : module.named_modules("", /*include_self=*/false)) refuse_late(*child.value(), child.key());
  std::unordered_set<const void*> known;
  for (const NamedTensor& item : wrapped_) known.insert(item.tensor.unsafeGetTensorImpl());
  // If each rank has its own buffers, new buffers need no broadcast either.
  const bool are_buffers_equal = options_.broadcast_buffers || options_.reproducible.is_on();
  for (const NamedTensor& item : state_of(module)) {
    if (known.contains(item.tensor.unsafeGetTensorImpl()) || !(item.is_parameter || are_buffers_equal)) continue;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: {} '{}' has come into the module since it was wrapped, and nobody would {}; wrap the "
        "module again{}",
        item.is_parameter ? "parameter" : "buffer", item.name,
        item.is_parameter ? "average its gradient" : "broadcast it",
        item.is_parameter ? "" : ", or set DdpOptions::broadcast_buffers to false where it is each rank's own"));
  }
}

std::optional<std::string> ReplicaImpl::live_gradient() const {
  std::vector<at::Tensor> is_live;
  std::vector<std::size_t> of_parameter;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = gradient_that_tells(i);
    if (!gradient.defined()) continue;
    is_live.push_back(gradient.detach().ne(0).any());
    of_parameter.push_back(i);
  }
  if (is_live.empty() || !at::stack(is_live).any().item<bool>()) return std::nullopt;
  std::size_t first = 0;
  while (!is_live[first].item<bool>()) ++first;
  return parameters_[of_parameter[first]].name;
}

const at::Tensor& ReplicaImpl::gradient_that_tells(std::size_t index) const {
  const Parameter& parameter = parameters_[index];
  const at::Tensor& gradient = parameter.tensor.grad();
  return is_sharded() && gradient.is_same(parameter.result) ? shares_[index].grad() : gradient;
}

void ReplicaImpl::refuse_late_loss() const {
  if (trainer_->has_weight()) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: record_loss in step {}, but no forward went through this object since the "
                  "last backward, or it has no weight; call it behind ddp(x) and set_weight(), before backward()",
                  trainer_->step()));
}

void ReplicaImpl::refuse_without_weight() const {
  // Outputs of a forward whose backward has ended may still be gone back through.
  if (trainer_->has_weight() || (*trainer_->weight() && passed_outputs_)) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: a gradient without a weight, in step {}: no forward went through this "
                  "object since the last backward, or its arguments hold no tensor to count rows of; call ddp(x) "
                  "instead of the module's forward, or set_weight() between forward and backward",
                  trainer_->step()));
}

// The gradients are those of a forward that did not go through this object, and counted by the rows of one that did.
void ReplicaImpl::refuse_other_forward() const {
  if (passed_outputs_ || !has_outputs_ || is_differentiable_) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: the backward of step {} did not come through the outputs of the last ddp(x): "
      "its loss was made by the module's own forward, or does not depend on them; call ddp(x) instead, evaluate under "
      "NoGradGuard, and call set_weight() after the forward where the loss is meant to be so",
      trainer_->step()));
}

void ReplicaImpl::refuse_updates_without_backward() {
  const std::uint64_t now = trained_versions();
  if (!unreached_) return;
  writes_without_backward_ = std::exchange(*unreached_, now) == now ? 0 : writes_without_backward_ + 1;
  if (writes_without_backward_ < 3) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: in step {} weights were written after each of the last {} forwards that train, and no "
      "backward() reached a parameter: gradients of torch::autograd::grad are not averaged, so that the replicas come "
      "apart. Call backward() on the loss; where each rank's weights are to be its own, or the program averages, call "
      "the module's own forward, and evaluate in eval() or under NoGradGuard",
      trainer_->step(), writes_without_backward_));
}

void ReplicaImpl::tell_of_no_backward() const {
  if (group_->rank() != 0) return;
  log_warn(
      "DistributedDataParallel: {} forwards that train, and no backward() has reached a parameter: is the loss cut off "
      "from ddp's outputs (detach(), NoGradGuard), or backward() left out? Evaluate in eval() or under NoGradGuard. "
      "This is logged once",
      *forwards_without_step_);
}

void ReplicaImpl::check_gradient(const Parameter& parameter) const {
  if (parameter.taken) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: '{}' got a second gradient in one backward, in step {}: a checkpointed "
                    "part, or a backward within the backward, shares it; set DdpOptions::overlap to false",
                    parameter.name, trainer_->step()));
  }
  const at::Tensor& gradient = parameter.tensor.grad();
  if (gradient.layout() != at::kStrided) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' is sparse; make it dense (EmbeddingOptions::sparse)",
                    parameter.name));
  }
  if (gradient.scalar_type() != parameter.result.scalar_type() || gradient.sizes() != parameter.result.sizes()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has {} elements of {}, when the module was wrapped "
                    "it had {} of {}; wrap the module again after changing it",
                    parameter.name, gradient.numel(), c10::toString(gradient.scalar_type()), parameter.result.numel(),
                    c10::toString(parameter.result.scalar_type())));
  }
  if (gradient.requires_grad()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the gradient of '{}' has a graph of its own (create_graph), which no "
                    "all-reduce keeps; take such gradients with torch::autograd::grad",
                    parameter.name));
  }
}

std::optional<std::string> Replica::collective_norm(const ::torch::nn::Module& module) {
  const auto is_collective = [](const ::torch::nn::Module& candidate) {
    const auto* norm = dynamic_cast<const SyncBatchNormImpl*>(&candidate);
    return norm != nullptr && norm->is_collective();
  };
  if (is_collective(module)) return module.name();
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    if (is_collective(*child.value())) return child.key();
  }
  return std::nullopt;
}

// Theirs are collectives of a forward, which this rank is about to leave out.
void ReplicaImpl::refuse_norms(const ::torch::nn::Module& module) {
  const auto norm = collective_norm(module);
  if (!norm) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: step_without_data, but the SyncBatchNorm '{}' takes the statistics of all "
                  "ranks' rows, and the others would wait for this one's; give the module a forward of 0 rows",
                  *norm));
}

}  // namespace lockstep::libtorch
