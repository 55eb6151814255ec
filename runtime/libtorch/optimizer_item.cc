// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/optimizer_item.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "runtime/libtorch/optimizer_state.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

using checkpoint::in_quotes, checkpoint::SnapshotValues;

std::string key_of(std::size_t group, std::string_view what) { return fmt::format("param_groups.{}.{}", group, what); }

SnapshotValues values_of(const ParameterNames& names) {
  SnapshotValues values{{"groups", static_cast<std::int64_t>(names.size())}};
  for (std::size_t g = 0; g < names.size(); ++g) {
    std::vector<std::string> first;
    for (const auto& all : names[g]) first.push_back(all.front());
    values[key_of(g, "params")] = first;
  }
  return values;
}

// By group, the names that the snapshot has.
std::vector<std::vector<std::string>> saved_names(const SnapshotValues& values) {
  std::vector<std::vector<std::string>> names;
  const auto groups = checkpoint::get_int(values, "groups");
  for (std::size_t g = 0; std::cmp_less(g, groups); ++g) {
    names.push_back(checkpoint::get_texts(values, key_of(g, "params")));
  }
  return names;
}

// Where a snapshot has what the program's optimizer has.
struct Match {
  std::map<std::string, std::string> names;        // of parameters in the snapshot, by their first name
  std::vector<std::optional<std::size_t>> groups;  // of the snapshot: that which had most of each group's parameters
  std::vector<std::string> missing, unexpected;
};

Match match_names(const SnapshotValues& values, const ParameterNames& names) {
  std::map<std::string, std::size_t> saved;  // the group, by parameter
  const auto groups = saved_names(values);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::string& name : groups[g]) saved[name] = g;
  }
  Match result;
  for (const auto& group : names) {
    std::map<std::size_t, std::size_t> counts;
    std::optional<std::size_t>& most = result.groups.emplace_back();
    for (const std::vector<std::string>& all : group) {
      const auto known = std::ranges::find_if(all, [&](const std::string& name) { return saved.contains(name); });
      if (known == all.end()) {
        result.missing.push_back(all.front());
        continue;
      }
      result.names[all.front()] = *known;
      const std::size_t from = saved.extract(*known).mapped();
      ++counts[from];
      if (!most || counts[from] > counts[*most]) most = from;
    }
  }
  for (const auto& [name, group] : saved) result.unexpected.push_back(name);
  return result;
}

// InvalidArgument unless the groups had these parameters, in this order.
void check_same(const SnapshotValues& values, const ParameterNames& names) {
  if (saved_names(values) == saved_names(values_of(names))) return;
  const Match match = match_names(values, names);
  check_names(
      match.missing, match.unexpected,
      {"its bytes fit the parameters that it had, in their order and groups; to begin without its state, add it "
       "by another name, and allow what is missing and unexpected in SnapshotOptions::restore"},
      {});
}

// The item of one of LibTorch's own optimizers, whose state is known.
template <typename Optimizer, typename State, typename Options>
class KnownItem final : public SnapshotItem {
 public:
  // `shards`: null where parameters are whole.
  KnownItem(Optimizer& optimizer, const char* type, NamesOf names_of, const OptimizerShards* shards)
      : optimizer_(optimizer), type_(type), names_of_(std::move(names_of)), shards_(shards) {
    look_at_groups();
    if (shards == nullptr) return;
    each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      if (cut_of(parameter)->whole.is_contiguous()) return;
      throw InvalidArgument(fmt::format(
          "Snapshots: the elements of {} lie in another order in memory than in a file (such as channels last), so the "
          "shards of the optimizer can't be written; keep the parameter contiguous, or leave DdpOptions::shard out",
          in_quotes(name)));
    });
  }

  std::string type() const override { return type_; }

  SnapshotValues values() const override {
    look_at_groups();
    SnapshotValues values;
    each_option([&](std::size_t group, const char* name, const auto& setting) {
      const std::string key = key_of(group, name);
      if constexpr (std::is_same_v<std::decay_t<decltype(setting)>, std::tuple<double, double>>) {
        values[key] = std::vector<double>{std::get<0>(setting), std::get<1>(setting)};
      } else {
        values[key] = setting;
      }
    });
    return values;
  }

  // Names the groups that the last values() saw: what a rescue has kept of that step lacks groups that came later.
  SnapshotValues fixed_values() const override { return values_of(names_); }
  bool is_sharded() const override { return shards_ != nullptr; }

  std::vector<SnapshotTensor> tensors() const override {
    if constexpr (kIsFused) correct_counts<typename State::TorchState>(optimizer_.state());
    std::vector<SnapshotTensor> tensors;
    each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      auto& states = optimizer_.state();
      const auto found = states.find(state_key<std::decay_t<decltype(states)>>(parameter));
      if (found == states.end()) return;
      each_field(state_in(found->second), [&](const char* field, auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          if (!value.defined()) return;
          tensors.push_back(saved_tensor(field_name(name, field), value, true));
          if (const auto cut = cut_of(parameter)) {
            tensors.back().shape = cut->whole.sizes().vec();
            tensors.back().shard = cut->shard;
          }
        } else {
          SnapshotTensor count = saved_tensor(field_name(name, field), at::scalar_tensor(value, at::kLong), true);
          count.is_copy = true;  // of the number
          tensors.push_back(std::move(count));
        }
      });
    });
    return tensors;
  }

  void check(const SavedItem& saved, const RestoreOptions& options) const override {
    look_at_groups();
    const Match match = match_names(saved.values(), names_);
    check_names(match.missing, match.unexpected, {}, options);
    each_setting_in(match, saved.values(), [](auto&, const auto&) {});
    std::set<std::string> known;
    for (const std::string& name : match.unexpected) {
      State fresh;
      each_field(fresh, [&](const char* field, auto&) { known.insert(field_name(name, field)); });
    }
    each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      const auto found = match.names.find(name);
      if (found != match.names.end()) check_state(saved, found->second, parameter, known);
    });
    for (const auto& [name, unused] : saved.tensors()) {
      if (!known.contains(name)) {
        throw InvalidArgument(
            fmt::format("the saved optimizer has {}, which is not a state of {}; restore into an optimizer of the type "
                        "that was saved",
                        in_quotes(name), type_));
      }
    }
  }

  void load(SavedItem& saved) override {
    const Match match = match_names(saved.values(), names_);
    each_setting_in(match, saved.values(), [](auto& setting, const auto& value) { setting = value; });
    each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      const auto found = match.names.find(name);
      if (found == match.names.end()) return;  // a new one keeps what it has
      auto& states = optimizer_.state();
      const auto key = state_key<std::decay_t<decltype(states)>>(parameter);
      auto state = std::make_unique<State>();
      bool has_any = false;
      each_field(*state, [&](const char* field, auto& value) {
        const std::string saved_name = field_name(found->second, field);
        const auto entry = saved.tensors().find(saved_name);
        if (entry == saved.tensors().end()) return;
        has_any = true;
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
          value = at::empty_like(parameter.detach(), at::TensorOptions().dtype(scalar_type_of(entry->second.dtype)));
          if (const auto cut = cut_of(parameter)) {
            const at::Tensor whole = at::empty(cut->whole.sizes(), value.options().device(at::kCPU));
            read_into(saved, saved_name, whole);
            value.copy_(whole.view(-1).slice(0, cut->shard.begin, cut->shard.end));
          } else {
            read_into(saved, saved_name, value);
          }
        } else {
          const at::Tensor number = at::zeros({}, at::kLong);
          read_into(saved, saved_name, number);
          value = number.template item<std::int64_t>();
        }
      });
      if (has_any) {
        states[key] = std::move(state);
      } else {
        states.erase(key);
      }
    });
  }

 private:
  static constexpr bool kIsFused = std::is_base_of_v<FusedOptimizer, Optimizer>;

  static State& state_in(std::unique_ptr<::torch::optim::OptimizerParamState>& any) {
    if constexpr (kIsFused) {
      return fused_state_in<typename State::TorchState>(any);
    } else {
      return static_cast<State&>(*any);
    }
  }

  static std::string field_name(const std::string& parameter, const char* field) {
    return fmt::format("state.{}.{}", parameter, field);
  }

  template <typename Visit>
  void each_parameter(Visit visit) const {
    const auto& groups = optimizer_.param_groups();
    for (std::size_t g = 0; g < std::min(names_.size(), groups.size()); ++g) {
      const auto& parameters = groups[g].params();
      for (std::size_t i = 0; i < std::min(names_[g].size(), parameters.size()); ++i) {
        visit(names_[g][i].front(), parameters[i]);
      }
    }
  }

  // Names are looked up anew only if other tensors are in the groups: values() is called in each step.
  void look_at_groups() const {
    const auto all = [this] {
      std::vector<std::vector<const void*>> tensors;
      for (const auto& group : optimizer_.param_groups()) {
        tensors.emplace_back();
        for (const at::Tensor& parameter : group.params()) tensors.back().push_back(parameter.unsafeGetTensorImpl());
      }
      return tensors;
    };
    if (all() == in_groups_) return;
    names_ = names_of_();
    in_groups_ = all();  // in which names_of_() has put shards in the place of parameters
  }

  template <typename Visit>
  void each_option(Visit visit) const {
    for (std::size_t g = 0; g < std::min(names_.size(), optimizer_.param_groups().size()); ++g) {
      each_setting(static_cast<Options&>(optimizer_.param_groups()[g].options()),
                   [&](const char* name, auto& setting) { visit(g, name, setting); });
    }
  }

  // visit(setting, saved value), but for the groups that are new.
  template <typename Visit>
  void each_setting_in(const Match& match, const SnapshotValues& values, Visit visit) const {
    each_option([&](std::size_t group, const char* name, auto& setting) {
      if (const auto& from = match.groups[group]) visit(setting, read_setting(values, key_of(*from, name), setting));
    });
  }

  static double read_setting(const SnapshotValues& values, const std::string& key, double) {
    return checkpoint::get_double(values, key);
  }
  static bool read_setting(const SnapshotValues& values, const std::string& key, bool) {
    return checkpoint::get_bool(values, key);
  }
  static std::tuple<double, double> read_setting(const SnapshotValues& values, const std::string& key,
                                                 const std::tuple<double, double>&) {
    const auto pair = checkpoint::get_doubles(values, key);
    if (pair.size() != 2)
      throw InvalidArgument(
          fmt::format("the optimizer's saved setting {} has {} numbers, and must have 2; the snapshot is damaged: "
                      "restore an older snapshot",
                      in_quotes(key), pair.size()));
    return {pair[0], pair[1]};
  }

  // All that a first step makes, or nothing at all.
  void check_state(const SavedItem& saved, const std::string& name, const at::Tensor& parameter,
                   std::set<std::string>& known) const {
    State fresh;
    std::vector<std::string> there, missing;
    each_field(fresh, [&](const char* field, auto& value) {
      const std::string saved_name = field_name(name, field);
      known.insert(saved_name);
      const auto entry = saved.tensors().find(saved_name);
      constexpr std::array<std::string_view, 4> kOptional{"max_exp_avg_sq", "grad_avg", "momentum_buffer", "master"};
      const bool is_optional = std::ranges::find(kOptional, field) != kOptional.end();
      if (entry == saved.tensors().end()) {
        if (!is_optional) missing.push_back(saved_name);
        return;
      }
      there.push_back(saved_name);
      std::vector<std::int64_t> shape;
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        const auto cut = cut_of(parameter);
        shape = (cut ? cut->whole : parameter).sizes().vec();
      }
      if (entry->second.shape != shape) {
        throw InvalidArgument(
            fmt::format("the state {} is {} in the snapshot, but the program's parameter is {}; make the model with "
                        "the sizes that were saved",
                        in_quotes(saved_name), checkpoint::describe(entry->second.dtype, entry->second.shape),
                        checkpoint::describe(entry->second.dtype, shape)));
      }
    });
    if (!there.empty() && !missing.empty()) {
      throw InvalidArgument(fmt::format(
          "the saved state of a parameter has {} but lacks {}, so the snapshot is damaged; restore an older snapshot",
          in_quotes(there.front()), in_quotes(missing.front())));
    }
  }

  // The parameter that a tensor of the optimizer's is a shard of; nullopt if it is whole.
  struct Cut {
    at::Tensor whole;
    SnapshotShard shard;
  };
  std::optional<Cut> cut_of(const at::Tensor& tensor) const {
    const at::Tensor whole = shards_ == nullptr ? tensor : shards_->whole_of(tensor);
    if (whole.is_same(tensor)) return std::nullopt;
    const std::int64_t begin = tensor.storage_offset() - whole.storage_offset();
    return Cut{whole, {begin, begin + tensor.numel()}};
  }

  Optimizer& optimizer_;
  const char* type_;
  NamesOf names_of_;
  mutable ParameterNames names_;  // of the parameters in the groups, as look_at_groups() last saw them
  mutable std::vector<std::vector<const void*>> in_groups_;  // their addresses
  const OptimizerShards* shards_;
};

// Any other, as the bytes that it makes of itself.
class OpaqueItem final : public SnapshotItem {
 public:
  // An optimizer that its save() can't write is refused here, rather than in a step.
  OpaqueItem(std::string_view name, ::torch::optim::Optimizer& optimizer, NamesOf names_of)
      : name_(name), optimizer_(optimizer), names_of_(std::move(names_of)) {
    // In its history of steps are tensors that are undefined until it is full.
    if (dynamic_cast<const ::torch::optim::LBFGS*>(&optimizer) != nullptr) {
      refuse(
          "torch's save() of an LBFGS fails once it has a history; take another optimizer, or don't add this "
          "optimizer: a run that is resumed then begins with an empty history");
    }
    std::istringstream stream(bytes());
    ::torch::serialize::InputArchive archive;
    archive.load_from(stream);
    if (archive.keys().empty()) {
      refuse("its save() writes nothing; override save() and load(), or don't add this optimizer if it keeps no state");
    }
  }

  std::string type() const override { return c10::demangle(typeid(optimizer_).name()); }
  SnapshotValues fixed_values() const override {
    SnapshotValues values = values_of(names_of_());
    values["shapes"] = shapes();
    return values;
  }
  std::vector<SnapshotTensor> tensors() const override {
    const std::string bytes = this->bytes();
    at::Tensor blob = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(blob.data_ptr()));
    SnapshotTensor tensor = saved_tensor(kBlob, blob, true);
    tensor.is_copy = true;
    return {std::move(tensor)};
  }
  void check(const SavedItem& saved, const RestoreOptions&) const override {
    check_same(saved.values(), names_of_());
    if (checkpoint::get_texts(saved.values(), "shapes") != shapes()) {
      throw InvalidArgument(
          "the optimizer's parameters had other shapes in the run that saved, and the saved bytes fit only those "
          "shapes; make the model with the sizes that were saved");
    }
    if (!saved.tensors().contains(kBlob)) throw InvalidArgument(fmt::format("it lacks {}", in_quotes(kBlob)));
  }
  void load(SavedItem& saved) override {
    const auto size = saved.tensors().at(kBlob).shape;
    const at::Tensor blob = at::empty(size, at::kByte);
    read_into(saved, kBlob, blob);
    ::torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(blob.data_ptr()), static_cast<std::size_t>(blob.numel()));
    optimizer_.load(archive);
  }

 private:
  static constexpr const char* kBlob = "blob";

  [[noreturn]] void refuse(std::string_view why) const {
    throw InvalidArgument(fmt::format("Snapshots: {}, an optimizer of type {}, can't be kept, because {}",
                                      in_quotes(name_), type(), why));
  }

  std::string bytes() const {
    std::ostringstream stream;
    try {
      ::torch::serialize::OutputArchive archive;
      optimizer_.save(archive);
      archive.save_to(stream);
    } catch (const c10::Error& error) {
      refuse(fmt::format(
          "its save() fails with \"{}\"; let save() write only defined, dense tensors, or don't add this optimizer",
          error.what_without_backtrace()));
    }
    return stream.str();
  }

  std::vector<std::string> shapes() const {
    std::vector<std::string> shapes;
    for (const auto& group : optimizer_.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        shapes.push_back(
            fmt::format("{} {}", c10::toString(parameter.scalar_type()), fmt::join(parameter.sizes(), "x")));
      }
    }
    return shapes;
  }

  std::string name_;
  ::torch::optim::Optimizer& optimizer_;
  NamesOf names_of_;
};

}  // namespace

std::shared_ptr<SnapshotItem> optimizer_item(std::string_view name, ::torch::optim::Optimizer& optimizer,
                                             NamesOf names_of) {
  using namespace ::torch::optim;
  const auto known =
      [&]<typename Type, typename State, typename Options>(const char* type) -> std::shared_ptr<SnapshotItem> {
    // Exactly it, or in shards: a class of the program's own over it may keep more.
    const auto* const shards = dynamic_cast<const OptimizerShards*>(&optimizer);
    auto* const it = dynamic_cast<Type*>(&optimizer);
    if (it == nullptr || (shards == nullptr && typeid(optimizer) != typeid(Type))) return nullptr;
    return std::make_shared<KnownItem<Type, State, Options>>(*it, type, names_of,
                                                             shards != nullptr && shards->are_cut() ? shards : nullptr);
  };
  if (auto item = known.operator()<FusedAdamW, FusedState<AdamWParamState>, AdamWOptions>("AdamW")) return item;
  if (auto item = known.operator()<FusedAdam, FusedState<AdamParamState>, AdamOptions>("Adam")) return item;
  if (auto item = known.operator()<FusedSGD, FusedState<SGDParamState>, SGDOptions>("SGD")) return item;
  if (auto item = known.operator()<SGD, SGDParamState, SGDOptions>("SGD")) return item;
  if (auto item = known.operator()<Adam, AdamParamState, AdamOptions>("Adam")) return item;
  if (auto item = known.operator()<AdamW, AdamWParamState, AdamWOptions>("AdamW")) return item;
  if (auto item = known.operator()<RMSprop, RMSpropParamState, RMSpropOptions>("RMSprop")) return item;
  if (auto item = known.operator()<Adagrad, AdagradParamState, AdagradOptions>("Adagrad")) return item;
  return std::make_shared<OpaqueItem>(name, optimizer, std::move(names_of));
}

}  // namespace lockstep::libtorch
