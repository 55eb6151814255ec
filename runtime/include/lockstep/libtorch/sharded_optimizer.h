// SPDX-License-Identifier: Apache-2.0
// ShardedOptimizer is an optimizer of LibTorch whose state the ranks divide among themselves (ZeRO, stage 1). Each rank
// updates its shard of the parameters, and receives all other weights from the other ranks.
//
//   using lockstep::libtorch::ShardedOptimizer;
//   lockstep::libtorch::DistributedDataParallel ddp(model, group, {.shard = lockstep::Shard::optimizer});
//   ShardedOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(3e-4));
//   for (auto& batch : *loader) {
//     optimizer.zero_grad();
//     ddp.backward(torch::nll_loss(ddp(batch.data), batch.target));
//     optimizer.clip_grad_norm(1.0);                                   // collective; torch's own finds NaN
//     optimizer.step();                                                // collective
//   }
//
// A ShardedOptimizer derives from its base optimizer. The groups in param_groups() hold this rank's shards, in the
// order of the parameters; a shard is a flat view of a parameter, and may have 0 elements. The .grad of a shard holds
// the mean of the gradient over the ranks. Settings, schedulers and GradScaler work as always. If the program adds a
// parameter later, with add_param_group() or in param_groups(), the next step replaces the parameter by its shard. The
// base optimizer must update each element independently of other elements.
//
// After step() every rank has all weights. On the CPU the weights have the same bits as in a run without
// Shard::optimizer, if the optimizer's arithmetic does not depend on an element's position (docs/SHARDING.md). With a
// single rank a ShardedOptimizer is the base optimizer over whole parameters.
//
// Threads: only the thread of the training uses a ShardedOptimizer.
// Collective: step() and clip_grad_norm() are collective.
// Failure: see the class ShardedOptimizer.
// End: a ShardedOptimizer may be destroyed before or after its DistributedDataParallel.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/fused_optimizers.h"

namespace lockstep::libtorch {

// OptimizerShards gives a ShardedOptimizer access to the shards of its DistributedDataParallel.
class LOCKSTEP_API OptimizerShards {
 public:
  explicit OptimizerShards(const Replica& replica);
  virtual ~OptimizerShards();
  OptimizerShards(const OptimizerShards&) = delete;
  OptimizerShards& operator=(const OptimizerShards&) = delete;

  // Returns whether parameters are cut into shards; returns false with a single rank.
  bool are_cut() const;
  // Returns the parameter whose shard is `tensor`; if `tensor`, a tensor of the optimizer's groups, is no shard,
  // returns `tensor`.
  at::Tensor whole_of(const at::Tensor& tensor) const;
  // Returns, for GradScaler, a number that is nonzero on every rank if `found_inf` is nonzero on some rank. The call
  // is collective.
  at::Tensor agreed(const at::Tensor& found_inf) const;
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;
  // Replaces whole parameters in the optimizer's groups by their shards. Throws InvalidArgument for a tensor that is
  // neither a parameter nor a shard of the DistributedDataParallel, or is listed twice.
  void put_shards(Groups& groups) const;

 protected:
  // Returns `groups` with each parameter replaced by its shard.
  Groups in_shards(Groups groups) const;
  // Returns one group with the shards of all parameters.
  Groups all_in_shards() const;
  void step_shards(Groups& groups, const std::function<void()>& step);
  void clear_gradients(bool set_to_none);
  double clip(Groups& groups, double max_norm) const;
  [[noreturn]] static void refuse_file(const char* call);

 private:
  std::shared_ptr<ReplicaEngine> engine_;
  std::unordered_map<const void*, std::size_t> index_;  // the indices of parameters and shards, by address
};

// Shardable holds for the optimizers that update each element independently: torch's SGD, Adam, AdamW, RMSprop and
// Adagrad, and lockstep's fused optimizers.
template <typename Base>
concept Shardable = std::same_as<Base, ::torch::optim::SGD> || std::same_as<Base, ::torch::optim::Adam> ||
    std::same_as<Base, ::torch::optim::AdamW> || std::same_as<Base, ::torch::optim::RMSprop> ||
    std::same_as<Base, ::torch::optim::Adagrad> || std::same_as<Base, FusedSGD> || std::same_as<Base, FusedAdam> ||
    std::same_as<Base, FusedAdamW>;

// ShardedOptimizer is the optimizer `Base` over this rank's shard of the parameters. The functions of a
// ShardedOptimizer throw the group's errors, and later calls throw the first error again.
//
// The constructor throws InvalidArgument for a DistributedDataParallel that has no shards, or that already has a
// ShardedOptimizer. The constructor, step(), clip_grad_norm() and add_param_group() throw InvalidArgument for a tensor
// in the groups that does not belong to the DistributedDataParallel, or is listed twice. A call of step() throws
// InvalidArgument if no synchronised backward has run since the last step() or zero_grad(). A call of step() also
// throws InvalidArgument if the program has replaced a parameter's .grad, or has destroyed the DistributedDataParallel.
// With several ranks, save() and load() throw InvalidArgument, because a rank has only its shard.
template <Shardable Base>
class ShardedOptimizer final : public OptimizerShards, public Base {
 public:
  // Makes an optimizer over ddp.parameters(), or over `groups` of some of ddp's parameters. Parameters outside the
  // groups keep their values. `options` are Base's.
  template <typename Net, typename Options>
  ShardedOptimizer(const DistributedDataParallel<Net>& ddp, Options options)
      : OptimizerShards(ddp), Base(all_in_shards(), std::move(options)) {}
  template <typename Net, typename Options>
  ShardedOptimizer(const DistributedDataParallel<Net>& ddp, std::vector<::torch::optim::OptimizerParamGroup> groups,
                   Options options)
      : OptimizerShards(ddp), Base(in_shards(std::move(groups)), std::move(options)) {}

  at::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure != nullptr) {
      const at::AutoGradMode grad(true);
      loss = closure();
    }
    step_shards(this->param_groups(), [&] { Base::step(); });
    return loss;
  }
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group) {
    Groups all = this->param_groups();
    all.push_back(group);
    put_shards(all);
    Base::add_param_group(all.back());
  }
  // Clears the gradients of all parameters of the DistributedDataParallel, as torch's zero_grad() does. The default of
  // `set_to_none` is torch's default. Before torch 2.0, zero_grad() writes zeros, so step() also updates a parameter
  // that no rank used, if the parameter had a gradient in an earlier step.
  void zero_grad(bool set_to_none = TORCH_VERSION_MAJOR >= 2) { clear_gradients(set_to_none); }
  // Scales the gradients so that their common norm is at most `max_norm`, like torch's clip_grad_norm_. Returns the
  // norm before scaling; the norm is equal on all ranks. The call is collective. On the CPU, the squares of the
  // gradients' elements (for float64 elements, rounded to float64) are added exactly, and the sum of each parameter is
  // rounded once. The norm on the CPU therefore depends neither on the number of ranks nor on the cuts into shards.
  // Throws InvalidArgument if `max_norm` is not above 0.
  double clip_grad_norm(double max_norm) { return clip(this->param_groups(), max_norm); }

  void save(::torch::serialize::OutputArchive& archive) const override {
    are_cut() ? refuse_file("save") : Base::save(archive);
  }
  void load(::torch::serialize::InputArchive& archive) override {
    are_cut() ? refuse_file("load") : Base::load(archive);
  }
};

}  // namespace lockstep::libtorch
