// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/snapshots.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/optimizer_item.h"
#include "runtime/libtorch/saved_tensor.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

class ModuleItem final : public SnapshotItem {
 public:
  ModuleItem(const ::torch::nn::Module& module, bool is_trained) : module_(module), is_trained_(is_trained) {}

  std::string type() const override { return "Module"; }
  std::vector<SnapshotTensor> tensors() const override {
    std::vector<SnapshotTensor> tensors;
    for (const NamedTensor& item : state_of(module_))
      tensors.push_back(saved_tensor(item.name, item.tensor, item.is_parameter && is_trained_));
    return tensors;
  }
  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    check_tensors(saved, tensors(), options);
  }
  void load(SavedItem& saved) override {
    for (const NamedTensor& item : state_of(module_)) {
      if (saved.tensors().contains(item.name)) read_into(saved, item.name, item.tensor);
    }
  }

 private:
  const ::torch::nn::Module& module_;
  const bool is_trained_;
};

class ScalerItem final : public SnapshotItem {
 public:
  explicit ScalerItem(GradScaler& scaler) : scaler_(scaler) {}

  std::string type() const override { return "GradScaler"; }
  checkpoint::SnapshotValues values() const override {
    return {{"scale", scaler_.state().scale}, {"_growth_tracker", scaler_.state().growth_tracker}};
  }
  void check(const SavedItem& saved, const RestoreOptions&) const override { read(saved); }
  void load(SavedItem& saved) override { scaler_.set_state(read(saved)); }

 private:
  static GradScaler::State read(const SavedItem& saved) {
    return {.scale = checkpoint::get_double(saved.values(), "scale"),
            .growth_tracker = checkpoint::get_int(saved.values(), "_growth_tracker")};
  }

  GradScaler& scaler_;
};

}  // namespace

Snapshots::Snapshots(std::filesystem::path folder, const ::torch::nn::Module& module,
                     std::shared_ptr<ProcessGroup> group, Steps steps, const SnapshotOptions& options)
    : BasicSnapshots(std::move(folder), std::move(group), std::move(steps), options) {
  add_module("model", module, true);
}

void Snapshots::add_module(std::string_view name, const ::torch::nn::Module& module, bool is_trained) {
  const std::string operation = fmt::format("Snapshots: add({})", checkpoint::in_quotes(name));
  for (const NamedTensor& item : state_of(module)) file_dtype(operation, item.name, item.tensor);
  add(name, std::make_shared<ModuleItem>(module, is_trained));
  modules_.push_back(&module);
}

void Snapshots::add(std::string_view name, ::torch::optim::Optimizer& optimizer) {
  std::unordered_map<const void*, std::string> of_module;
  for (const auto* module : modules_) {
    for (const NamedTensor& item : state_of(*module)) of_module[item.tensor.unsafeGetTensorImpl()] = item.name;
  }
  std::vector<std::vector<std::string>> names;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = of_module.find(parameter.unsafeGetTensorImpl());
      if (found == of_module.end()) {
        throw InvalidArgument(
            fmt::format("Snapshots: add({}): parameter {} of the optimizer's group {} is none of the "
                        "module's; add the module that it is of before",
                        checkpoint::in_quotes(name), names.back().size(), names.size() - 1));
      }
      names.back().push_back(found->second);
    }
  }
  auto item = optimizer_item(name, optimizer, std::move(names));
  item->tensors();  // what can't be kept is refused here, rather than in a step
  add(name, std::move(item));
}

void Snapshots::add(std::string_view name, GradScaler& scaler) { add(name, std::make_shared<ScalerItem>(scaler)); }

}  // namespace lockstep::libtorch
