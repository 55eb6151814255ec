// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/checkpoint/transpose.h"
#include "runtime/tensor/sharded_update.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep {
namespace {

using checkpoint::SnapshotValues;

// The names of a tensor of the model, and its layout in files; of an optimizer in shards, this rank's shard of its
// state.
struct NamedLayout {
  std::vector<std::string> names;
  nn::FileLayout layout = nn::FileLayout::as_it_is;
  std::optional<SnapshotShard> shard = std::nullopt;
};

// `shape`: of the whole tensor, in memory.
SnapshotTensor in_file(std::string name, const Tensor& tensor, const Shape& shape, nn::FileLayout layout) {
  const Tensor host = tensor.to(DeviceId{});
  const BufferView view = host.view();
  const auto extents = shape.extents();
  SnapshotTensor saved{.name = std::move(name),
                       .dtype = tensor.dtype(),
                       .shape = {extents.begin(), extents.end()},
                       .bytes = {static_cast<const std::byte*>(view.data), view.bytes()},
                       .owner = std::make_shared<Tensor>(host),
                       .is_copy = host.id() != tensor.id(),
                       .only_optimizers_write = true,
                       .is_transposed = layout == nn::FileLayout::transposed,
                       .version = [tensor] { return tensor.version(); }};
  if (saved.is_transposed) std::swap(saved.shape[0], saved.shape[1]);
  return saved;
}

// `tensor` has the elements of `shard`, or all.
void read_into(SavedItem& saved, const std::vector<std::string>& names, const Tensor& tensor, const Shape& shape,
               nn::FileLayout layout, const std::optional<SnapshotShard>& shard = std::nullopt) {
  const auto name = name_in(saved, names);
  if (!name) return;  // check() allowed it
  const Tensor host = Tensor::empty(shape, tensor.dtype());
  const BufferView view = host.view();
  const std::span<std::byte> bytes{static_cast<std::byte*>(view.data), view.bytes()};
  saved.read(*name, bytes);
  if (layout == nn::FileLayout::transposed)
    checkpoint::transpose(bytes, host.size(1), host.size(0), size_of(host.dtype()));
  tensor.copy_from(shard ? host.view_as({host.count()}).view_rows(shard->begin, shard->end) : host);
}

class ModelItem final : public SnapshotItem {
 public:
  explicit ModelItem(const nn::Module& model) : model_(model) {}

  std::string type() const override { return "Module"; }
  std::vector<SnapshotTensor> tensors() const override {
    const auto layouts = model_.file_layouts();
    const auto names = model_.parameter_names();
    std::vector<SnapshotTensor> tensors;
    for (const auto& [name, tensor] : model_.named_parameters()) {
      const std::size_t i = tensors.size();
      tensors.push_back(in_file(name, tensor, tensor.shape(), layouts[i]));
      tensors.back().other_names.assign(names[i].begin() + 1, names[i].end());
    }
    return tensors;
  }
  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    check_tensors(saved, tensors(), options);
  }
  void load(SavedItem& saved) override {
    const auto layouts = model_.file_layouts();
    const auto names = model_.parameter_names();
    std::size_t i = 0;
    for (const Tensor& tensor : model_.parameters()) {
      read_into(saved, names[i], tensor, tensor.shape(), layouts[i]);
      ++i;
    }
  }

 private:
  const nn::Module& model_;
};

class OptimizerItem final : public SnapshotItem {
 public:
  // `names`: of the optimizer's parameters, in their order.
  OptimizerItem(optim::Optimizer& optimizer, std::vector<NamedLayout> names)
      : optimizer_(optimizer), names_(std::move(names)) {}

  std::string type() const override { return optimizer_.name(); }
  SnapshotValues values() const override {
    SnapshotValues values{{"steps", optimizer_.steps()}, {"lr", optimizer_.learning_rate()}};
    return values;
  }
  SnapshotValues fixed_values() const override {
    SnapshotValues values;
    for (const auto& [name, value] : optimizer_.settings()) values[name] = value;
    std::vector<std::string> parameters;
    std::vector<double> decays;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      parameters.push_back(names_[i].names.front());
      decays.push_back(optimizer_.weight_decay(i));
    }
    values["params"] = parameters;
    values["weight_decay"] = decays;
    return values;
  }
  std::vector<SnapshotTensor> tensors() const override {
    std::vector<SnapshotTensor> tensors;
    for (const optim::NamedState& state : optimizer_.state()) {
      tensors.push_back(in_file(names_of(state).front(), state.tensor, shape_of(state), layout_of(state)));
      tensors.back().shard = shard_of(state);
    }
    return tensors;
  }
  bool is_sharded() const override {
    return std::any_of(names_.begin(), names_.end(), [](const NamedLayout& it) { return it.shard.has_value(); });
  }
  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    for (const auto& [name, value] : optimizer_.settings()) {
      if (const double was = checkpoint::get_double(saved.values(), name); was != value) {
        throw InvalidArgument(
            fmt::format("{} of the optimizer was {} in the run that saved, and the program's is {}; give the optimizer "
                        "the value that was saved",
                        checkpoint::in_quotes(name), was, value));
      }
    }
    checkpoint::get_int(saved.values(), "steps");
    checkpoint::get_double(saved.values(), "lr");
    check_decays(saved.values());
    std::vector<SnapshotTensor> wanted = tensors();
    std::size_t i = 0;
    for (const optim::NamedState& state : optimizer_.state()) {
      const std::vector<std::string> names = names_of(state);
      wanted[i++].other_names.assign(names.begin() + 1, names.end());
    }
    check_tensors(saved, wanted, options);
  }
  void load(SavedItem& saved) override {
    for (const optim::NamedState& state : optimizer_.state()) {
      read_into(saved, names_of(state), state.tensor, shape_of(state), layout_of(state), shard_of(state));
    }
    optimizer_.set_steps(checkpoint::get_int(saved.values(), "steps"));
    optimizer_.set_learning_rate(checkpoint::get_double(saved.values(), "lr"));
  }

 private:
  // The names that a snapshot may have a state by: it is saved by the first name of a tied parameter.
  std::vector<std::string> names_of(const optim::NamedState& state) const {
    std::vector<std::string> names;
    for (const std::string& name : names_[state.parameter].names) {
      names.push_back(fmt::format("state.{}.{}", name, state.name));
    }
    return names;
  }
  // Counts are whole on every rank.
  std::optional<SnapshotShard> shard_of(const optim::NamedState& state) const {
    return state.tensor.dtype() == DType::i64 ? std::nullopt : names_[state.parameter].shard;
  }
  Shape shape_of(const optim::NamedState& state) const {
    return shard_of(state) ? optimizer_.parameters()[state.parameter].shape() : state.tensor.shape();
  }
  nn::FileLayout layout_of(const optim::NamedState& state) const {
    const bool is_as_large = shape_of(state).dims() == 2;
    return is_as_large ? names_[state.parameter].layout : nn::FileLayout::as_it_is;
  }
  void check_decays(const SnapshotValues& values) const {
    const auto names = checkpoint::get_texts(values, "params");
    const auto decays = checkpoint::get_doubles(values, "weight_decay");
    std::map<std::string, double> was;
    for (std::size_t i = 0; i < std::min(names.size(), decays.size()); ++i) was[names[i]] = decays[i];
    for (std::size_t i = 0; i < names_.size(); ++i) {
      for (const std::string& name : names_[i].names) {
        const auto found = was.find(name);
        if (found == was.end() || found->second == optimizer_.weight_decay(i)) continue;
        throw InvalidArgument(
            fmt::format("the weight decay of {} was {} in the run that saved, and the program's is {}; give the "
                        "optimizer the value that was saved",
                        checkpoint::in_quotes(name), found->second, optimizer_.weight_decay(i)));
      }
    }
  }

  optim::Optimizer& optimizer_;
  std::vector<NamedLayout> names_;
};

}  // namespace

Snapshots::Snapshots(std::filesystem::path folder, DistributedDataParallel& ddp, const SnapshotOptions& options)
    : BasicSnapshots(std::move(folder), ddp.group(), steps_of(ddp), options), networks_{&ddp} {
  add("model", std::make_shared<ModelItem>(ddp.module()));
}

BasicSnapshots::Steps Snapshots::steps_of(DistributedDataParallel& ddp) {
  return {.count = [&ddp] { return ddp.steps(); },
          .set = [&ddp](std::int64_t steps) { ddp.set_steps(steps); },
          .before_update = [&ddp](std::function<void()> action) { ddp.before_update(std::move(action)); },
          .before_accumulate = [&ddp](std::function<void()> action) { ddp.before_accumulate(std::move(action)); },
          .is_over = [&ddp] { return ddp.is_step_over(); }};
}

void Snapshots::add(std::string_view name, DistributedDataParallel& ddp) {
  add(name, std::make_shared<ModelItem>(ddp.module()));
  follow(std::string(name) + ".steps", steps_of(ddp));
  networks_.push_back(&ddp);
}

void Snapshots::add(std::string_view name, optim::Optimizer& optimizer) {
  std::map<const void*, NamedLayout> of_model;
  for (const DistributedDataParallel* ddp : networks_) {
    const auto layouts = ddp->module().file_layouts();
    const auto names_of = ddp->module().parameter_names();
    std::size_t next = 0;
    for (const Tensor& tensor : ddp->module().parameters()) {
      of_model[tensor.id()] = {names_of[next], layouts[next]};
      ++next;
    }
  }
  std::vector<NamedLayout> names;
  for (const Tensor& parameter : optimizer.parameters()) {
    const auto found = of_model.find(parameter.id());
    if (found == of_model.end()) {
      throw InvalidArgument(
          fmt::format("Snapshots: add({}): parameter {} of the optimizer ({}) belongs to no model that was added; add "
                      "the parameter's model before the optimizer",
                      checkpoint::in_quotes(name), names.size(), parameter.str()));
    }
    names.push_back(found->second);
    if (const ShardedUpdate* const shards = TensorInternals(parameter).sharded_update()) {
      const ShardedUpdate::Range own = shards->shard(parameter);
      names.back().shard = SnapshotShard{own.begin, own.end};
    }
  }
  add(name, std::make_shared<OptimizerItem>(optimizer, std::move(names)));
}

}  // namespace lockstep
