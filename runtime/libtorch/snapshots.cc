// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/snapshots.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/optimizer_item.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// values() keeps the tensors of its moment, the end of a step, without a wait for the device; tensors() reads them.
class ScalerItem final : public SnapshotItem {
 public:
  explicit ScalerItem(GradScaler& scaler) : scaler_(scaler), kept_(scaler.tensors()) {}

  std::string type() const override { return "GradScaler"; }
  checkpoint::SnapshotValues values() const override {
    kept_ = scaler_.tensors();
    return {};
  }
  std::vector<SnapshotTensor> tensors() const override {
    const GradScaler::State state = GradScaler::read(kept_);
    std::vector<SnapshotTensor> tensors{
        saved_tensor(kScale, at::scalar_tensor(state.scale, at::kDouble), true),
        saved_tensor(kTracker, at::scalar_tensor(state.growth_tracker, at::kLong), true)};
    for (SnapshotTensor& tensor : tensors) tensor.is_copy = true;
    return tensors;
  }
  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    check_tensors(saved, tensors(), options);
  }
  void load(SavedItem& saved) override {
    const at::Tensor scale = at::zeros({}, at::kDouble), tracker = at::zeros({}, at::kLong);
    read_into(saved, kScale, scale);
    read_into(saved, kTracker, tracker);
    scaler_.set_state(GradScaler::read({scale, tracker}));
  }

 private:
  static constexpr const char* kScale = "scale";
  static constexpr const char* kTracker = "_growth_tracker";

  GradScaler& scaler_;
  mutable GradScaler::Tensors kept_;
};

// The names in `modules` of the parameters of `optimizer`, the item `name`, as its groups are now.
ParameterNames names_in(const std::string& name, ::torch::optim::Optimizer& optimizer,
                        const std::vector<const ::torch::nn::Module*>& modules) {
  std::unordered_map<const void*, std::vector<std::string>> of_module;
  for (const auto* module : modules) {
    const auto add_name = [&](const auto& item) {
      of_module[item.value().unsafeGetTensorImpl()].push_back(item.key());
    };
    for (const auto& item : module->named_parameters()) add_name(item);
    for (const auto& item : module->named_buffers()) add_name(item);
  }
  const auto* const shards = dynamic_cast<const OptimizerShards*>(&optimizer);
  if (shards != nullptr && shards->are_cut()) shards->put_shards(optimizer.param_groups());
  ParameterNames names;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor whole = shards == nullptr ? parameter : shards->whole_of(parameter);
      const auto found = of_module.find(whole.unsafeGetTensorImpl());
      if (found == of_module.end()) {
        throw InvalidArgument(
            fmt::format("Snapshots: add({}): parameter {} of the optimizer's group {} belongs to no module that was "
                        "added; add the parameter's module before the optimizer",
                        checkpoint::in_quotes(name), names.back().size(), names.size() - 1));
      }
      names.back().push_back(found->second);
    }
  }
  return names;
}

}  // namespace

class Snapshots::ModuleItem final : public SnapshotItem {
 public:
  ModuleItem(const ::torch::nn::Module& module, WeightUnit unit) : module_(module), unit_(std::move(unit)) {}

  std::string type() const override { return "Module"; }
  checkpoint::SnapshotValues values() const override {
    const auto unit = unit_.get ? unit_.get() : std::nullopt;
    return unit ? checkpoint::SnapshotValues{{kUnit, *unit}} : checkpoint::SnapshotValues{};
  }
  std::vector<SnapshotTensor> tensors() const override {
    // Only optimizers write the parameters of a module that is trained.
    const bool is_trained = unit_.get != nullptr;
    std::vector<SnapshotTensor> tensors;
    for (const auto& [names, tensor, is_parameter] : state_in_files(module_)) {
      tensors.push_back(saved_tensor(names.front(), tensor, is_parameter && is_trained));
      tensors.back().other_names.assign(names.begin() + 1, names.end());
    }
    return tensors;
  }
  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    check_tensors(saved, tensors(), options);
    unit_in(saved);
  }
  void load(SavedItem& saved) override {
    for (const TensorInFiles& item : state_in_files(module_)) {
      if (const auto name = name_in(saved, item.names)) read_into(saved, *name, item.tensor);
    }
    if (const auto unit = unit_in(saved); unit && unit_.set) unit_.set(*unit);
  }

 private:
  static constexpr const char* kUnit = "weight_unit";

  // A snapshot of before the first backward has none, nor has one that an older lockstep wrote.
  static std::optional<std::int64_t> unit_in(const SavedItem& saved) {
    if (!saved.values().contains(kUnit)) return std::nullopt;
    return std::max<std::int64_t>(checkpoint::get_int(saved.values(), kUnit), 1);
  }

  const ::torch::nn::Module& module_;
  const WeightUnit unit_;
};

Snapshots::Snapshots(std::filesystem::path folder, const ::torch::nn::Module& module,
                     std::shared_ptr<ProcessGroup> group, Steps steps, WeightUnit unit, const SnapshotOptions& options)
    : BasicSnapshots(std::move(folder), std::move(group), std::move(steps), options) {
  add_module("model", module, std::move(unit));
}

void Snapshots::add_module(std::string_view name, const ::torch::nn::Module& module, WeightUnit unit) {
  const std::string operation = fmt::format("Snapshots: add({})", checkpoint::in_quotes(name));
  for (const NamedTensor& item : state_of(module)) file_dtype(operation, item.name, item.tensor);
  add(name, std::make_shared<ModuleItem>(module, std::move(unit)));
  modules_.push_back(&module);
}

void Snapshots::add(std::string_view name, ::torch::optim::Optimizer& optimizer) {
  // A copy of the modules: the item is asked while this object ends, too.
  auto item = optimizer_item(name, optimizer, [item = std::string(name), &optimizer, modules = modules_] {
    return names_in(item, optimizer, modules);
  });
  item->tensors();  // refuses here, rather than in a step, an optimizer that can't be kept
  add(name, std::move(item));
}

void Snapshots::add(std::string_view name, GradScaler& scaler) { add(name, std::make_shared<ScalerItem>(scaler)); }

}  // namespace lockstep::libtorch
