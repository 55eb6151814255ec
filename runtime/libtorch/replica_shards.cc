// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/replica_shards.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"

namespace lockstep::libtorch {
namespace {

// Elements [begin, end) of dense memory, in its order.
at::Tensor elements(const at::Tensor& dense, std::int64_t begin, std::int64_t end) {
  return dense.detach().as_strided({end - begin}, {1}, dense.storage_offset() + begin);
}

}  // namespace

void ReplicaShards::cut() {
  const at::NoGradGuard no_grad;
  const Reducer& reducer = *module_.trainer.reducer();
  ranges_.resize(parameters_.size());
  bucket_of_.resize(parameters_.size());
  views_.resize(parameters_.size());
  for (std::size_t b = 0; b < reducer.plan().buckets.size(); ++b) {
    for (const int index : reducer.plan().buckets[b].parameters) {
      if (index < std::ssize(parameters_)) bucket_of_[static_cast<std::size_t>(index)] = static_cast<int>(b);
    }
  }
  for (const ParameterShard& shard : reducer.shards(module_.group->rank())) {
    ranges_[static_cast<std::size_t>(shard.parameter)] = shard;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    if (!tensor.is_non_overlapping_and_dense()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: the elements of '{}' do not lie together in memory (strides [{}]), and "
                      "Shard::optimizer cuts that memory into shards; make the parameter contiguous, or leave "
                      "DdpOptions::shard out",
                      name, fmt::join(tensor.strides(), ", ")));
    }
    placeholders_.push_back(
        at::full({}, std::numeric_limits<double>::quiet_NaN(), tensor.options()).expand(tensor.sizes()));
    shards_.push_back(elements(tensor, ranges_[i].begin, ranges_[i].end));
  }
}

void ReplicaShards::claim(bool is_claimed) {
  if (is_claimed && is_claimed_) {
    throw InvalidArgument(
        "ShardedOptimizer: another ShardedOptimizer has the shards of this DistributedDataParallel; give one optimizer "
        "all parameters, with a group for each setting, or destroy the other ShardedOptimizer first");
  }
  is_claimed_ = is_claimed;
}

void ReplicaShards::refuse_unclaimed() const {
  if (!are_cut() || is_claimed_) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: step {} has a backward with Shard::optimizer, and no ShardedOptimizer has "
                  "the shards: torch's own optimizers would step without gradients; make a "
                  "lockstep::libtorch::ShardedOptimizer over this object, or leave DdpOptions::shard out",
                  module_.trainer.step()));
}

const at::Tensor& ReplicaShards::gradient_that_tells(std::size_t index) const {
  const at::Tensor& gradient = parameters_[index].tensor.grad();
  return are_cut() && is_placeholder(index) ? shards_[index].grad() : gradient;
}

bool ReplicaShards::is_placeholder(std::size_t index) const {
  return parameters_[index].tensor.grad().is_same(placeholders_[index]);
}

void ReplicaShards::clear() {
  for (const at::Tensor& shard : shards_) shard.mutable_grad().reset();
}

const at::Tensor& ReplicaShards::adopt(std::size_t index, const at::Tensor& view) {
  views_[index] = view;
  return placeholders_[index];
}

void ReplicaShards::give_mean(std::size_t index) {
  const at::NoGradGuard no_grad;
  const at::Tensor& parameter = parameters_[index].tensor;
  const at::Tensor mean = elements(views_[index], ranges_[index].begin, ranges_[index].end);
  // Rounded once, or the view itself. Detached, so that it is not a view to torch, which zeroes none in place.
  shards_[index].mutable_grad() = mean.to(parameter.scalar_type()).detach();
  parameter.mutable_grad() = placeholders_[index];
}

void ReplicaShards::leave() {
  has_means_ = false;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (is_placeholder(i)) parameters_[i].tensor.mutable_grad().reset();
  }
}

void ReplicaShards::update(const std::function<void()>& step) {
  if (!has_means_) {
    throw InvalidArgument(
        fmt::format("ShardedOptimizer: step() found no shards of averaged gradients, in step {}; call step() once "
                    "after a synchronised backward of its DistributedDataParallel, and before zero_grad()",
                    module_.trainer.steps()));
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    // By storage, so that a rank whose shard is empty sees it too: else it would wait for the others.
    if (shards_[i].is_alias_of(tensor)) continue;
    throw InvalidArgument(
        fmt::format("ShardedOptimizer: parameter '{}' lies in other memory than when its module was wrapped; copy into "
                    "a parameter instead of replacing it, or wrap the module again",
                    name));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_ours = !parameters_[i].tensor.grad().defined() || is_placeholder(i);
    if (is_ours || module_.trainer.is_declared_unused(static_cast<int>(i))) continue;
    throw InvalidArgument(
        fmt::format("ShardedOptimizer: the program has replaced the gradient of '{}' since the backward, and with "
                    "Shard::optimizer a step uses only each rank's shard of the mean: change the .grad of the tensors "
                    "in param_groups() instead, or clip with clip_grad_norm()",
                    parameters_[i].name));
  }
  const at::NoGradGuard no_grad;
  has_means_ = false;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    gradients.push_back(std::exchange(shards_[i].mutable_grad(), at::Tensor()));
    if (!parameters_[i].tensor.grad().defined()) gradients.back().reset();  // the program has dropped it
  }
  // The optimizer sees the gradients of one bucket at a time: that bucket travels while it makes the next one.
  std::vector<char> is_stepped(module_.trainer.reducer()->plan().buckets.size(), 0);
  const auto step_once = [&](int bucket) {
    if (std::exchange(is_stepped[static_cast<std::size_t>(bucket)], 1) != 0) return;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (bucket_of_[i] == bucket) shards_[i].mutable_grad() = gradients[i];
    }
    step();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (bucket_of_[i] == bucket) shards_[i].mutable_grad().reset();
    }
  };
  {
    const OnCurrentStream ordered(*module_.group);
    module_.trainer.reducer()->update_shards([&](const ParameterShard& shard) {
      const auto index = static_cast<std::size_t>(shard.parameter);
      step_once(bucket_of_[index]);
      elements(views_[index], shard.begin, shard.end).copy_(shards_[index]);  // the new weights
    });
  }
  // Buckets without elements of this rank are stepped too: all ranks count as many writes.
  for (const int bucket : bucket_of_) step_once(bucket);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [parameter, begin, end] = ranges_[i];
    const at::Tensor& tensor = parameters_[i].tensor;
    elements(tensor, 0, begin).copy_(elements(views_[i], 0, begin));
    elements(tensor, end, tensor.numel()).copy_(elements(views_[i], end, tensor.numel()));
  }
}

void ReplicaShards::clear_gradients(bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (set_to_none || !gradient.defined()) {
      gradient.reset();
    } else if (are_cut()) {
      gradient = at::zeros({}, gradient.options()).expand(gradient.sizes());  // set aside by the next backward
    } else {
      gradient = gradient.detach().zero_();
    }
  }
  clear();
  has_means_ = false;
}

}  // namespace lockstep::libtorch
