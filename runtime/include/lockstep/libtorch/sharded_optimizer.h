// SPDX-License-Identifier: Apache-2.0
// ShardedOptimizer is an optimizer of LibTorch whose state the ranks divide (ZeRO, stage 1): each rank updates its
// shard of the parameters, and receives the other weights from the other ranks.
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
// A ShardedOptimizer derives from its base optimizer. param_groups() hold this rank's shard: flat views of the
// parameters in the groups' order, perhaps of 0 elements, whose .grad is the mean over ranks. Settings, schedulers and
// GradScaler work as always. A parameter that is added later, by add_param_group() or param_groups(), is replaced by
// its shard at the next step. The base's update must be element by element.
//
// After step() every rank has all weights. On the CPU the weights have the bits of a run without shards, if the
// optimizer's arithmetic does not depend on where an element lies (docs/SHARDING.md). With a single rank a
// ShardedOptimizer is the base optimizer over whole parameters.
//
// Threads: only the training's thread uses a ShardedOptimizer.
// Collective: step() and clip_grad_norm() are collective.
// Failure: see the class ShardedOptimizer.
// End: a ShardedOptimizer may end before or after its DistributedDataParallel.
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

// OptimizerShards are a DistributedDataParallel's shards, as a ShardedOptimizer uses them.
class LOCKSTEP_API OptimizerShards {
 public:
  explicit OptimizerShards(const Replica& replica);
  virtual ~OptimizerShards();
  OptimizerShards(const OptimizerShards&) = delete;
  OptimizerShards& operator=(const OptimizerShards&) = delete;

  // Returns whether parameters are cut into shards; false with a single rank.
  bool are_cut() const;
  // Returns the parameter whose shard is `tensor`, a tensor of the optimizer's groups; returns `tensor` itself if it is
  // no shard.
  at::Tensor whole_of(const at::Tensor& tensor) const;
  // Returns, for GradScaler, a number that is not 0 on any rank if `found_inf` is not 0 on some rank. The call
  // is collective.
  at::Tensor agreed(const at::Tensor& found_inf) const;
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;
  // Replaces whole parameters in the optimizer's groups by their shards. Throws InvalidArgument for a tensor that is
  // neither a parameter nor a shard, or is listed twice.
  void put_shards(Groups& groups) const;

 protected:
  // Returns the groups with shards in the place of parameters.
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

// Shardable optimizers update element by element: torch's SGD, Adam, AdamW, RMSprop and Adagrad, and lockstep's
// fused optimizers.
template <typename Base>
concept Shardable = std::same_as<Base, ::torch::optim::SGD> || std::same_as<Base, ::torch::optim::Adam> ||
    std::same_as<Base, ::torch::optim::AdamW> || std::same_as<Base, ::torch::optim::RMSprop> ||
    std::same_as<Base, ::torch::optim::Adagrad> || std::same_as<Base, FusedSGD> || std::same_as<Base, FusedAdam> ||
    std::same_as<Base, FusedAdamW>;

// The optimizer `Base` over this rank's shard of the parameters. Calls throw the group's errors, which later calls
// throw again, and InvalidArgument
//
// - from the constructor for a DistributedDataParallel without shards, or with a ShardedOptimizer already;
// - from the constructor, step(), clip_grad_norm() and add_param_group() for a tensor in the groups that does not
//   belong to its DistributedDataParallel, or is listed twice;
// - from step() without a synchronised backward since the last step() or zero_grad(), for a parameter whose .grad the
//   program has replaced, and after the end of the DistributedDataParallel;
// - from save() and load() with several ranks, because a rank has only its shard.
template <Shardable Base>
class ShardedOptimizer final : public OptimizerShards, public Base {
 public:
  // Makes an optimizer over ddp.parameters(), or over `groups` of some of ddp's parameters; the other parameters keep
  // their values. `options` are Base's.
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
  // `set_to_none` is torch's: before 2.0 zero_grad() writes zeros, and a parameter that had a gradient is then stepped
  // although no rank used the parameter.
  void zero_grad(bool set_to_none = TORCH_VERSION_MAJOR >= 2) { clear_gradients(set_to_none); }
  // Scales the gradients so that their common norm is at most `max_norm`, like torch's clip_grad_norm_. Returns the
  // norm before scaling, the same on all ranks. The call is collective. On the CPU squares (of float64 numbers rounded
  // to float64) are added exactly, and each parameter's sum is rounded once, so the norm depends neither on ranks nor
  // on cuts. Throws InvalidArgument if `max_norm` is not above 0.
  double clip_grad_norm(double max_norm) { return clip(this->param_groups(), max_norm); }

  void save(::torch::serialize::OutputArchive& archive) const override {
    are_cut() ? refuse_file("save") : Base::save(archive);
  }
  void load(::torch::serialize::InputArchive& archive) override {
    are_cut() ? refuse_file("load") : Base::load(archive);
  }
};

}  // namespace lockstep::libtorch
