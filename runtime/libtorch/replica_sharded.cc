// SPDX-License-Identifier: Apache-2.0
// A replica whose optimizer has a share of the parameters on each rank (DdpOptions::shard).
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/libtorch/replica_impl.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// Elements [begin, end) of dense memory, in its order.
at::Tensor elements(const at::Tensor& dense, std::int64_t begin, std::int64_t end) {
  return dense.detach().as_strided({end - begin}, {1}, dense.storage_offset() + begin);
}

}  // namespace

// Buckets keep the order of reverse registration, for an optimizer's state belongs to a share.
void ReplicaImpl::cut_shares() {
  if (options_.shard == Shard::none || group_->size() == 1) return;
  const at::NoGradGuard no_grad;
  const Reducer& reducer = *trainer_->reducer();
  bucket_of_.resize(parameters_.size());
  for (std::size_t b = 0; b < reducer.plan().buckets.size(); ++b) {
    for (const int index : reducer.plan().buckets[b].parameters) {
      if (index < std::ssize(parameters_)) bucket_of_[static_cast<std::size_t>(index)] = static_cast<int>(b);
    }
  }
  for (const ParameterShare& share : reducer.shares(group_->rank())) {
    parameters_[static_cast<std::size_t>(share.parameter)].share = share;
  }
  for (Parameter& parameter : parameters_) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.is_non_overlapping_and_dense()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: the elements of '{}' do not lie together (strides [{}]), and "
                      "Shard::optimizer cuts memory; make it contiguous, or leave DdpOptions::shard out",
                      parameter.name, fmt::join(tensor.strides(), ", ")));
    }
    parameter.result = at::full({}, std::numeric_limits<double>::quiet_NaN(), tensor.options()).expand(tensor.sizes());
    shares_.push_back(elements(tensor, parameter.share.begin, parameter.share.end));
  }
}

void ReplicaImpl::claim_shares(bool is_claimed) {
  if (is_claimed && is_claimed_) {
    throw InvalidArgument(
        "ShardedOptimizer: another one has the shares of this DistributedDataParallel: one makes the step of all; give "
        "it all parameters, those with other settings in a group of their own, or destroy the other one before");
  }
  is_claimed_ = is_claimed;
}

void ReplicaImpl::refuse_without_sharded_optimizer() const {
  if (!is_sharded() || is_claimed_) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: a backward in step {} with Shard::optimizer, and no ShardedOptimizer has the shares: "
      "torch's own optimizers would step with gradients that are not there; make a "
      "lockstep::libtorch::ShardedOptimizer over this object, or leave DdpOptions::shard out",
      trainer_->step()));
}

void ReplicaImpl::give_share(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  const auto index = static_cast<std::size_t>(&parameter - parameters_.data());
  const at::Tensor mean = elements(parameter.view, parameter.share.begin, parameter.share.end);
  // Rounded once, or the view itself. Detached, so that it is not a view to torch, which zeroes none in place.
  shares_[index].mutable_grad() = mean.to(parameter.tensor.scalar_type()).detach();
  parameter.tensor.mutable_grad() = parameter.result;
  parameter.before.reset();  // zeros, or the backward was refused
}

void ReplicaImpl::leave_weights(Parameter& parameter) {
  const auto index = static_cast<std::size_t>(&parameter - parameters_.data());
  elements(parameter.view, parameter.share.begin, parameter.share.end).copy_(shares_[index]);
}

void ReplicaImpl::update_shares(const std::function<void()>& step) {
  settle_lost();
  if (!has_shares_) {
    throw InvalidArgument(
        fmt::format("ShardedOptimizer: step() behind {} steps without shares of a mean; it comes once behind a "
                    "synchronised backward of its DistributedDataParallel, and before zero_grad()",
                    trainer_->steps()));
  }
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    // By storage, so that a rank whose share is empty sees it too: else it would wait for the others.
    if (shares_[i].is_alias_of(parameter.tensor)) continue;
    throw InvalidArgument(
        fmt::format("ShardedOptimizer: '{}' has other memory than when it was wrapped; copy into a parameter instead "
                    "of replacing it, or wrap the module again",
                    parameter.name));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    const bool is_ours = !gradient.defined() || gradient.is_same(parameters_[i].result);
    if (is_ours || trainer_->is_declared_unused(static_cast<int>(i))) continue;
    throw InvalidArgument(fmt::format(
        "ShardedOptimizer: the program has replaced the gradient of '{}' since the backward, and with Shard::optimizer "
        "a step takes each rank's share of the mean alone: change that, the .grad of the tensors in param_groups(), or "
        "clip with clip_grad_norm()",
        parameters_[i].name));
  }
  const at::NoGradGuard no_grad;
  has_shares_ = false;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    gradients.push_back(std::exchange(shares_[i].mutable_grad(), at::Tensor()));
    if (!parameters_[i].tensor.grad().defined()) gradients.back().reset();  // the program has dropped it
  }
  // The optimizer sees the gradients of one bucket at a time: that bucket travels while it makes the next one.
  const auto step_bucket = [&](int bucket) {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      if (bucket_of_[i] == bucket) shares_[i].mutable_grad() = gradients[i];
    }
    step();
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      if (bucket_of_[i] == bucket) shares_[i].mutable_grad().reset();
    }
  };
  std::vector<char> is_stepped(trainer_->reducer()->plan().buckets.size(), 0);
  const auto step_once = [&](int bucket) {
    if (std::exchange(is_stepped[static_cast<std::size_t>(bucket)], 1) == 0) step_bucket(bucket);
  };
  {
    const OnCurrentStream ordered(*group_);
    trainer_->reducer()->update_shares([&](const ParameterShare& share) {
      const auto index = static_cast<std::size_t>(share.parameter);
      step_once(bucket_of_[index]);
      leave_weights(parameters_[index]);
    });
  }
  // Buckets without elements of this rank are stepped too: all ranks count as many writes.
  for (const int bucket : bucket_of_) step_once(bucket);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter, begin, end] = parameters_[i].share;
    const at::Tensor& tensor = parameters_[i].tensor;
    const at::Tensor& all = parameters_[i].view;
    elements(tensor, 0, begin).copy_(elements(all, 0, begin));
    elements(tensor, end, tensor.numel()).copy_(elements(all, end, tensor.numel()));
  }
}

void ReplicaImpl::clear_gradients(bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (set_to_none || !gradient.defined()) {
      gradient.reset();
    } else if (is_sharded()) {
      gradient = at::zeros({}, gradient.options()).expand(gradient.sizes());  // set aside by the next backward
    } else {
      gradient = gradient.detach().zero_();
    }
  }
  for (const at::Tensor& share : shares_) share.mutable_grad().reset();
  has_shares_ = false;
}

}  // namespace lockstep::libtorch
