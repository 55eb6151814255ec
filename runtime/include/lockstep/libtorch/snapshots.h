// SPDX-License-Identifier: Apache-2.0
// Snapshots saves and restores a training job that uses LibTorch: the module, its optimizers, a GradScaler, the
// position in the data, and other values of the program. The contract is in lockstep/snapshot/snapshots.h.
//
//   lockstep::libtorch::Snapshots snapshots("run7", ddp, {.every = 500});
//   snapshots.add("optimizer", optimizer);
//   snapshots.add("data", sampler);
//   snapshots.restore();
//
// The snapshot's file model.safetensors holds the module's state_dict, buffers included. The state of SGD, Adam, AdamW,
// RMSprop and Adagrad is stored under PyTorch's names, such as "state.PARAMETER.exp_avg", together with the parameter
// groups' settings. A restore() replaces the optimizers' settings by the snapshot's settings, as torch's
// load_state_dict() does. Each parameter group takes the settings of the parameter group in the snapshot with which it
// shares the most parameters. An optimizer of any other type is stored as the bytes that its save() writes, and can be
// restored only into an optimizer with the same parameters. Snapshots::add() refuses an optimizer whose save() writes
// no bytes, and LBFGS, which torch can't save.
//
// A snapshot can't store a torch::optim::LRScheduler, because the scheduler's counter is private. Make the learning
// rate a function of ddp.steps() instead, for example with lockstep::optim::Schedule.
//
// With DdpOptions::seed all randomness is a function of the step, so snapshots hold no state of random number
// generators.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/module_ref.h"
#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

class LOCKSTEP_API Snapshots final : public BasicSnapshots {
 public:
  // Makes an object that saves ddp's module in snapshots, as the item named "model". `ddp` must outlive this object.
  // Throws InvalidArgument if `folder` is empty, or if an option is out of its range.
  template <std::derived_from<::torch::nn::Module> Net>
  Snapshots(std::filesystem::path folder, DistributedDataParallel<Net>& ddp, const SnapshotOptions& options = {})
      : Snapshots(std::move(folder), ddp.module(), ddp.group(), steps_of(ddp), unit_of(ddp), options) {}
  using BasicSnapshots::add;
  // Adds another network that the program trains, such as a GAN's second network. The snapshot stores the network's
  // module under `name`, and the network's number of steps under `name` + ".steps".
  template <std::derived_from<::torch::nn::Module> Net>
  void add(std::string_view name, DistributedDataParallel<Net>& ddp) {
    add_module(name, ddp.module(), unit_of(ddp));
    follow(std::string(name) + ".steps", steps_of(ddp));
  }
  // Adds a module that the program itself updates, such as a copy of the model with averaged weights.
  void add(std::string_view name, const ModuleRef& module) { add_module(name, module.get(), {}); }
  // Adds an optimizer whose parameters belong to the constructor's `ddp` or to modules that were added before. Throws
  // InvalidArgument if the optimizer has a parameter of any other module.
  void add(std::string_view name, ::torch::optim::Optimizer& optimizer);
  void add(std::string_view name, GradScaler& scaler);

 private:
  // WeightUnit holds the functions that get and set DistributedDataParallel::weight_unit() of a trained module. `get`
  // and `set` are null for a module that no DistributedDataParallel trains.
  struct WeightUnit {
    std::function<std::optional<std::int64_t>()> get = nullptr;
    std::function<void(std::int64_t)> set = nullptr;
  };
  class LOCKSTEP_LOCAL ModuleItem;
  Snapshots(std::filesystem::path folder, const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
            Steps steps, WeightUnit unit, const SnapshotOptions& options);

  template <typename Ddp>
  static Steps steps_of(Ddp& ddp) {
    return {.count = [&ddp] { return ddp.steps(); },
            .set = [&ddp](std::int64_t steps) { ddp.set_steps(steps); },
            .before_update = [&ddp](std::function<void()> action) { ddp.before_update(std::move(action)); },
            .before_accumulate = [&ddp](std::function<void()> action) { ddp.before_accumulate(std::move(action)); },
            .is_over = [&ddp] { return ddp.is_step_over(); },
            .after_broadcast = [&ddp](std::function<void()> action) { ddp.after_broadcast(std::move(action)); },
            .audited = [&ddp] { return ddp.audited_step(); },
            .set_audited = [&ddp](std::int64_t step) { ddp.set_audited_step(step); },
            .before_blame = [&ddp](std::function<void(std::int64_t)> action) { ddp.before_blame(std::move(action)); }};
  }

  template <typename Ddp>
  static WeightUnit unit_of(Ddp& ddp) {
    return {.get = [&ddp] { return ddp.weight_unit(); },
            .set = [&ddp](std::int64_t unit) { ddp.set_weight_unit(unit); }};
  }

  void add_module(std::string_view name, const ::torch::nn::Module& module, WeightUnit unit);

  std::vector<const ::torch::nn::Module*> modules_;
};

}  // namespace lockstep::libtorch
