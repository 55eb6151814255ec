// SPDX-License-Identifier: Apache-2.0
// The items that need no engine: values of the program's own, and the place in the data.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/base/text.h"

namespace lockstep {
namespace {

using checkpoint::SnapshotValue, checkpoint::SnapshotValues;

constexpr std::size_t kMostNames = 12;  // in a message

std::string names_of(const std::vector<std::string>& names) {
  return joined(names, checkpoint::in_quotes, ", ", kMostNames);
}

// An item that has values alone. All of them are read once before any of them counts: check() does it for the type's
// sake.
class ValuesItem : public SnapshotItem {
 public:
  void check(const SavedItem& saved, const RestoreOptions&) const override { read(saved.values(), false); }
  void load(SavedItem& saved) override { read(saved.values(), true); }

 private:
  // InvalidArgument if they don't fit; they count with `is_final`.
  virtual void read(const SnapshotValues& values, bool is_final) const = 0;
};

constexpr const char* kValue = "value";

class ValueItem final : public ValuesItem {
 public:
  ValueItem(std::function<SnapshotValue()> get, std::function<void(const SnapshotValues&, std::string_view)> set)
      : get_(std::move(get)), set_(std::move(set)) {}
  std::string type() const override { return kValue; }
  SnapshotValues values() const override { return {{kValue, get_()}}; }

 private:
  void read(const SnapshotValues& values, bool is_final) const override {
    const SnapshotValue before = get_();
    set_(values, kValue);
    if (!is_final) set_({{kValue, before}}, kValue);
  }

  std::function<SnapshotValue()> get_;
  std::function<void(const SnapshotValues&, std::string_view)> set_;
};

class PositionItem final : public ValuesItem {
 public:
  PositionItem(std::function<data::SamplerState()> get, std::function<void(const data::SamplerState&)> set)
      : get_(std::move(get)), set_(std::move(set)) {}
  std::string type() const override { return "position"; }
  SnapshotValues values() const override {
    const data::SamplerState state = get_();
    return {{"length", state.length},
            {"seed", state.seed},
            {"order", state.order},
            {"epoch", state.epoch},
            {"consumed", state.consumed}};
  }

 private:
  void read(const SnapshotValues& values, bool is_final) const override {
    const data::SamplerState state{.length = checkpoint::get_int(values, "length"),
                                   .seed = checkpoint::get_uint(values, "seed"),
                                   .order = checkpoint::get_uint(values, "order"),
                                   .epoch = checkpoint::get_int(values, "epoch"),
                                   .consumed = checkpoint::get_int(values, "consumed")};
    const data::SamplerState here = get_();
    if (state.length != here.length || state.seed != here.seed || state.order != here.order) {
      throw InvalidArgument(
          fmt::format("it is of a dataset of {} samples in the order of seed {} (digest {:016x}), and the program's is "
                      "of {} with seed {} ({:016x}); give the sampler what it had",
                      state.length, state.seed, state.order, here.length, here.seed, here.order));
    }
    if (is_final) set_(state);
  }

  std::function<data::SamplerState()> get_;
  std::function<void(const data::SamplerState&)> set_;
};

class EarlyStopItem final : public ValuesItem {
 public:
  explicit EarlyStopItem(EarlyStop& stop) : stop_(stop) {}
  std::string type() const override { return "EarlyStop"; }
  SnapshotValues values() const override {
    return {{"best", stop_.state().best}, {"not_better", std::int64_t{stop_.state().not_better}}};
  }

 private:
  void read(const SnapshotValues& values, bool is_final) const override {
    const EarlyStop::State state{.best = checkpoint::get_double(values, "best"),
                                 .not_better = static_cast<int>(checkpoint::get_int(values, "not_better"))};
    if (is_final) stop_.set_state(state);
  }

  EarlyStop& stop_;
};

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
      different.push_back(fmt::format("{} is {} and the program's {}", checkpoint::in_quotes(name),
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
    say(fmt::format("it has {}, which the program has not", names_of(unexpected)));
  }
  if (!different.empty())
    say(joined(
        different, [](const std::string& it) { return it; }, "; ", kMostNames));
  if (text.empty()) return;
  throw InvalidArgument(
      text + (different.empty()
                  ? "; was the program changed? allow_missing and allow_unexpected in SnapshotOptions::restore allow it"
                  : "; was the program changed?"));
}

std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names) {
  const auto has = [&](const std::string& name) { return saved.tensors().contains(name); };
  const auto found = std::ranges::find_if(names, has);
  return found == names.end() ? std::nullopt : std::optional(*found);
}

std::shared_ptr<SnapshotItem> BasicSnapshots::value_item(ValueAccess access) {
  return std::make_shared<ValueItem>(std::move(access.get), std::move(access.set));
}

std::shared_ptr<SnapshotItem> BasicSnapshots::position_item(std::function<data::SamplerState()> get,
                                                            std::function<void(const data::SamplerState&)> set) {
  return std::make_shared<PositionItem>(std::move(get), std::move(set));
}

void BasicSnapshots::add(std::string_view name, EarlyStop& stop) { add(name, std::make_shared<EarlyStopItem>(stop)); }

void refuse_snapshot_number(std::string_view name) {
  throw InvalidArgument(fmt::format("value {} is beyond the range of the program's own", checkpoint::in_quotes(name)));
}

}  // namespace lockstep
