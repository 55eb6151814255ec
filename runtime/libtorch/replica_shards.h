// SPDX-License-Identifier: Apache-2.0
// This rank's shards of a replica's parameters, for a ShardedOptimizer (DdpOptions::shard, in a world of several).
// Empty where parameters are whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "runtime/libtorch/trained_module.h"

namespace lockstep::libtorch {

class ReplicaShards {
 public:
  explicit ReplicaShards(TrainedModule& module) : module_(module), parameters_(module.parameters()) {}
  // Once, with a Reducer. InvalidArgument for a parameter whose memory can't be cut. Buckets keep the order of reverse
  // registration, for an optimizer's state belongs to a shard.
  void cut();

  bool are_cut() const { return !shards_.empty(); }
  // Flat views, by parameter, perhaps of 0 elements, whose .grad is the shard's mean after a synchronised backward.
  const std::vector<at::Tensor>& tensors() const { return shards_; }
  // Takes a parameter's slice of the arena; returns what .grad has after a step, where no rank has all of the mean:
  // NaN.
  const at::Tensor& adopt(std::size_t index, const at::Tensor& view);
  // InvalidArgument where an optimizer has them already.
  void claim(bool is_claimed);
  void refuse_unclaimed() const;

  // .grad of a parameter; where that says nothing, the shard's.
  const at::Tensor& gradient_that_tells(std::size_t index) const;
  // Whether the shards' gradients are the means of the last step, as update() needs them.
  void set_has_means(bool has_means) { has_means_ = has_means; }
  // After a synchronised step: clears the shards' gradients, then each that is used gets its mean; what .grad would
  // lack says so, by NaN.
  void clear();
  void give_mean(std::size_t index);
  // Leaves no NaN in the module.
  void leave();
  // Collective, once after a synchronised backward, else InvalidArgument: calls `step` for each bucket, whose shards
  // alone have a .grad then, and gives every rank the weights of all.
  void update(const std::function<void()>& step);
  // Leaves parameters without gradients, or with zeros where they had some; shards without.
  void clear_gradients(bool set_to_none);

 private:
  // .grad is the NaN that stands for what no rank has.
  bool is_placeholder(std::size_t index) const;

  TrainedModule& module_;
  const std::vector<TrainedModule::Parameter>& parameters_;
  std::vector<at::Tensor> shards_;
  std::vector<at::Tensor> views_;         // by parameter: its slice of the arena
  std::vector<at::Tensor> placeholders_;  // NaN of the parameters' sizes, without memory
  std::vector<ParameterShard> ranges_;    // by parameter; [0, 0) where this rank has none
  std::vector<int> bucket_of_;            // by parameter
  bool is_claimed_ = false;               // an optimizer has the shards
  bool has_means_ = false;
};

}  // namespace lockstep::libtorch
