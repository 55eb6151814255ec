// SPDX-License-Identifier: Apache-2.0
// This file has the snapshot items that need no tensor engine: values of the program, and the position in the data.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/base/text.h"

namespace lockstep {
namespace {

using checkpoint::SnapshotValue, checkpoint::SnapshotValues;

constexpr std::size_t kMostNames = 12;  // the largest number of names in a message

std::string names_of(const std::vector<std::string>& names) {
  return joined(names, checkpoint::in_quotes, ", ", kMostNames);
}

// ValuesItem is a snapshot item that has only values and no tensors. Before load() sets the program's values, check()
// reads all saved values, to find values of a wrong type.
class ValuesItem final : public SnapshotItem {
 public:
  using Get = std::function<SnapshotValues()>;
  // Reads the saved values, and also sets the program's values if `is_final` is true. Throws InvalidArgument if the
  // values don't fit.
  using Read = std::function<void(const SnapshotValues& values, bool is_final)>;

  ValuesItem(std::string type, Get get, Read read)
      : type_(std::move(type)), get_(std::move(get)), read_(std::move(read)) {}

  std::string type() const override { return type_; }
  SnapshotValues values() const override { return get_(); }
  void check(const SavedItem& saved, const RestoreOptions&) const override { read_(saved.values(), false); }
  void load(SavedItem& saved) override { read_(saved.values(), true); }

 private:
  const std::string type_;
  const Get get_;
  const Read read_;
};

constexpr const char* kValue = "value";

}  // namespace

void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted, const RestoreOptions& options) {
  std::vector<std::string> missing, unexpected, different;
  std::set<std::string> names;
  for (const SnapshotTensor& tensor : wanted) {
    if (!name_in(saved, tensor.names())) missing.push_back(tensor.name);
    for (const std::string& name : tensor.names()) {
      names.insert(name);
      const auto found = saved.tensors().find(name);
      if (found == saved.tensors().end()) continue;
      if (found->second.dtype == tensor.dtype && found->second.shape == tensor.shape) continue;
      different.push_back(fmt::format("{} is {}, and the program's is {}", checkpoint::in_quotes(name),
                                      checkpoint::describe(found->second.dtype, found->second.shape),
                                      checkpoint::describe(tensor.dtype, tensor.shape)));
    }
  }
  for (const auto& [name, unused] : saved.tensors()) {
    if (!names.contains(name)) unexpected.push_back(name);
  }
  check_names(missing, unexpected, different, options);
}

void check_names(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                 const std::vector<std::string>& different, const RestoreOptions& options) {
  std::string text;
  const auto say = [&](std::string_view what) { text += fmt::format("{}{}", text.empty() ? "" : "; ", what); };
  if (!missing.empty() && !options.allow_missing) say(fmt::format("it lacks {}", names_of(missing)));
  if (!unexpected.empty() && !options.allow_unexpected) {
    say(fmt::format("it has {}, which the program does not have", names_of(unexpected)));
  }
  if (!different.empty()) say(joined(different, std::identity(), "; ", kMostNames));
  if (text.empty()) return;
  throw InvalidArgument(text + (different.empty() ? "; resume with the program that saved the snapshot, or set "
                                                    "allow_missing or allow_unexpected in SnapshotOptions::restore"
                                                  : "; resume with the program that saved the snapshot"));
}

std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names) {
  const auto has = [&](const std::string& name) { return saved.tensors().contains(name); };
  const auto found = std::ranges::find_if(names, has);
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::shared_ptr<SnapshotItem> BasicSnapshots::value_item(ValueAccess access) {
  const auto get = [get = access.get]() -> SnapshotValues { return {{kValue, get()}}; };
  const auto read = [access = std::move(access)](const SnapshotValues& values, bool is_final) {
    const SnapshotValue before = access.get();
    access.set(values, kValue);
    if (!is_final) access.set({{kValue, before}}, kValue);
  };
  return std::make_shared<ValuesItem>(kValue, get, read);
}

std::shared_ptr<SnapshotItem> BasicSnapshots::position_item(std::function<data::SamplerState()> get,
                                                            std::function<void(const data::SamplerState&)> set) {
  const auto values = [get]() -> SnapshotValues {
    const data::SamplerState state = get();
    return {{"length", state.length},
            {"seed", state.seed},
            {"order", state.order},
            {"epoch", state.epoch},
            {"consumed", state.consumed}};
  };
  const auto read = [get = std::move(get), set = std::move(set)](const SnapshotValues& saved, bool is_final) {
    const data::SamplerState state{.length = checkpoint::get_int(saved, "length"),
                                   .seed = checkpoint::get_uint(saved, "seed"),
                                   .order = checkpoint::get_uint(saved, "order"),
                                   .epoch = checkpoint::get_int(saved, "epoch"),
                                   .consumed = checkpoint::get_int(saved, "consumed")};
    const data::SamplerState here = get();
    if (state.length != here.length || state.seed != here.seed || state.order != here.order) {
      throw InvalidArgument(
          fmt::format("the saved position belongs to a dataset of {} samples in the order of seed {} (digest {:016x}), "
                      "but the program's sampler has {} samples with seed {} (digest {:016x}); give the sampler the "
                      "dataset and seed of the saved position",
                      state.length, state.seed, state.order, here.length, here.seed, here.order));
    }
    if (is_final) set(state);
  };
  return std::make_shared<ValuesItem>("position", values, read);
}

void BasicSnapshots::add(std::string_view name, EarlyStop& stop) {
  const auto values = [&stop]() -> SnapshotValues {
    const EarlyStop::State& state = stop.state();
    return {{"best", state.best}, {"not_better", std::int64_t{state.not_better}}, {"at_step", state.at_step}};
  };
  const auto read = [&stop](const SnapshotValues& saved, bool is_final) {
    const EarlyStop::State state{.best = checkpoint::get_double(saved, "best"),
                                 .not_better = static_cast<int>(checkpoint::get_int(saved, "not_better")),
                                 // Snapshots of 0.2.0 have none.
                                 .at_step = saved.contains("at_step") ? checkpoint::get_int(saved, "at_step") : 0};
    if (is_final) stop.set_state(state);
  };
  add(name, std::make_shared<ValuesItem>("EarlyStop", values, read));
}

void refuse_snapshot_number(std::string_view name) {
  throw InvalidArgument(
      fmt::format("the snapshot's value of {} does not fit the program's variable of this name, whose type is too "
                  "narrow; give that variable a wider type, such as std::int64_t",
                  checkpoint::in_quotes(name)));
}

}  // namespace lockstep
