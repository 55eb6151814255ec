// SPDX-License-Identifier: Apache-2.0
// Snapshots saves and restores a job with LibTorch: the module, its optimizers, a GradScaler, the place in its data,
// and values of the program's own. lockstep/snapshot/snapshots.h has the contract.
//
//   lockstep::libtorch::Snapshots snapshots("run7", ddp, {.every = 500});
//   snapshots.add("optimizer", optimizer);
//   snapshots.add("data", sampler);
//   snapshots.restore();
//
// model.safetensors is the module's state_dict, with its buffers. SGD, Adam, AdamW, RMSprop and Adagrad are kept under
// the parameters' names in PyTorch's terms, "state.PARAMETER.exp_avg", with the settings of their groups. The
// snapshot's settings replace the program's settings, as in torch's load_state_dict(): a group takes the settings of
// the saved group that had most of its parameters. Any other optimizer is kept as the bytes that its save() makes, and
// can be restored only for the same parameters. add() refuses an optimizer whose save() makes no bytes, and LBFGS,
// which torch can't save.
//
// A torch::optim::LRScheduler can't be kept, because its counter is private. Make the learning rate a function of
// ddp.steps(), such as lockstep::optim::Schedule.
//
// DdpOptions::seed makes randomness a function of the step, so no generator has to be kept.
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
  // Keeps `ddp`'s module as the item "model"; `ddp` outlives this object. Throws InvalidArgument for an empty name, and
  // for options that are out of their range.
  template <std::derived_from<::torch::nn::Module> Net>
  Snapshots(std::filesystem::path folder, DistributedDataParallel<Net>& ddp, const SnapshotOptions& options = {})
      : Snapshots(std::move(folder), ddp.module(), ddp.group(), steps_of(ddp), unit_of(ddp), options) {}
  using BasicSnapshots::add;
  // Adds another network that is trained, such as a GAN's second network: the module as NAME, and the steps
  // as NAME.steps.
  template <std::derived_from<::torch::nn::Module> Net>
  void add(std::string_view name, DistributedDataParallel<Net>& ddp) {
    add_module(name, ddp.module(), unit_of(ddp));
    follow(std::string(name) + ".steps", steps_of(ddp));
  }
  // Adds a module that the program itself updates, such as averaged weights.
  void add(std::string_view name, const ModuleRef& module) { add_module(name, module.get(), {}); }
  // Adds an optimizer of parameters of "model", or of a module that was added before. Throws InvalidArgument if the
  // optimizer has another parameter.
  void add(std::string_view name, ::torch::optim::Optimizer& optimizer);
  void add(std::string_view name, GradScaler& scaler);

 private:
  // The functions that get and set DistributedDataParallel::weight_unit() of a module that is trained; null for
  // another module.
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
            .after_broadcast = [&ddp](std::function<void()> action) { ddp.after_broadcast(std::move(action)); }};
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
