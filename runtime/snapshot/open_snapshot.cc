// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/open_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/values.h"
#include "runtime/base/logging.h"
#include "runtime/snapshot/agree.h"

namespace lockstep {

using checkpoint::ManifestItem, checkpoint::SlicedTensor, checkpoint::SnapshotValues;

namespace {

// On rank 0, returns the sum of each number in `item` over all ranks whose values were saved. On the other ranks,
// returns a zero for each number.
SnapshotValues sums_of(const ManifestItem& item, int rank) {
  std::vector<SnapshotValues> known = item.values;
  std::erase_if(known, [](const SnapshotValues& values) { return values.empty(); });
  if (known.empty()) return {};
  const auto sum_of = [&](const std::string& name, auto sum, auto get) {
    for (const SnapshotValues& values : known) sum += rank == 0 ? get(values, name) : 0;
    return sum;
  };
  SnapshotValues sums;
  for (const auto& [name, first] : known.front()) {
    if (std::holds_alternative<double>(first)) {
      sums[name] = sum_of(name, 0.0, checkpoint::get_double);
    } else if (std::holds_alternative<std::uint64_t>(first)) {
      sums[name] = sum_of(name, std::uint64_t{0}, checkpoint::get_uint);
    } else if (std::holds_alternative<std::int64_t>(first)) {
      sums[name] = sum_of(name, std::int64_t{0}, checkpoint::get_int);
    } else {
      throw InvalidArgument(
          fmt::format("value {} of item {} is text, true or false, or a list, which has no sum over the ranks; add the "
                      "item with AtAnotherSize::drop or refuse",
                      checkpoint::in_quotes(name), checkpoint::in_quotes(item.name)));
    }
  }
  return sums;
}

// Returns this rank's values, or nullopt if the rank keeps its current values.
std::optional<SnapshotValues> own_values(const ManifestItem& item, AtAnotherSize at_another_size, int rank, int size) {
  if (item.kind != checkpoint::ItemKind::per_rank) return item.values.front();
  if (std::cmp_equal(item.values.size(), size)) {
    const SnapshotValues& own = item.values[static_cast<std::size_t>(rank)];
    if (own.empty()) return std::nullopt;  // another rank saved the snapshot after this rank had died
    return own;
  }
  switch (at_another_size) {
    case AtAnotherSize::drop: return std::nullopt;
    case AtAnotherSize::sum: return sums_of(item, rank);
    case AtAnotherSize::refuse: break;
  }
  throw InvalidArgument(
      fmt::format("item {} has one value for each of {} ranks, and this job has {} ranks; run {} ranks, or add the "
                  "item with AtAnotherSize::sum or drop",
                  checkpoint::in_quotes(item.name), item.values.size(), size, item.values.size()));
}

}  // namespace

// A SharedItem is an item of the snapshot. One rank reads each of the item's files, and sends the bytes to all ranks.
class OpenSnapshot::SharedItem final : public SavedItem {
 public:
  // `snapshot` and `item` must outlive this object.
  SharedItem(OpenSnapshot& snapshot, const ManifestItem& item, SnapshotValues values)
      : snapshot_(snapshot), item_(item), values_(std::move(values)), sliced_(snapshot.tensors_.at(item.name)) {
    for (const auto& [name, tensor] : sliced_) tensors_[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  }

  const std::string& name() const override { return item_.name; }
  const std::string& type() const override { return item_.type; }
  const SnapshotValues& values() const override { return values_; }
  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& tensor, std::span<std::byte> destination) override {
    const SlicedTensor& whole = sliced_.at(tensor);
    ProcessGroup& group = snapshot_.group_;
    checkpoint::read_whole(whole, destination, [&](const checkpoint::TensorSlice& slice, std::span<std::byte> bytes) {
      const int reader = snapshot_.chosen_.readers.at(slice.file);
      if (reader == group.rank()) snapshot_.files_.read(whole, slice, bytes);
      if (group.size() > 1) broadcast_bytes(bytes, group, reader);
    });
  }

 private:
  OpenSnapshot& snapshot_;
  const ManifestItem& item_;
  const SnapshotValues values_;
  const Tensors& sliced_;
  std::map<std::string, Entry> tensors_;
};

OpenSnapshot::OpenSnapshot(ProcessGroup& group, Candidate chosen)
    : group_(group), chosen_(std::move(chosen)), manifest_(*chosen_.contents), files_(chosen_.own_path) {
  // The manifest lists only tensors that were saved in slices. A file of whole tensors has a list of its tensors, so
  // the rank that reads the file sends this list to all ranks, with each tensor as one slice.
  checkpoint::Manifest own;
  own.world_size = group.size();
  for (const ManifestItem& item : manifest_.items) {
    Tensors& tensors = tensors_[item.name];
    for (const SlicedTensor& tensor : item.sliced) tensors.emplace(tensor.name, tensor);
    const auto reader = item.tensors ? chosen_.readers.find(*item.tensors) : chosen_.readers.end();
    if (reader == chosen_.readers.end() || reader->second != group.rank()) continue;
    own.items.push_back({.name = item.name,
                         .type = item.type,
                         .kind = checkpoint::ItemKind::sharded,
                         .sliced = files_.tensors_of(item)});
  }
  for (const std::string& text : all_gather_text(group, checkpoint::to_text(own))) {
    for (const ManifestItem& item : checkpoint::part_from_text(text).items) {
      for (const SlicedTensor& tensor : item.sliced) tensors_.at(item.name).emplace(tensor.name, tensor);
    }
  }
}

RestoredSnapshot OpenSnapshot::restored() const {
  return {.step = chosen_.step,
          .path = chosen_.path,
          .rank = chosen_.rank,
          .world_size = manifest_.world_size,
          .value = chosen_.value};
}

const ManifestItem* OpenSnapshot::find(const ListedItem& item) const {
  const auto saved = std::ranges::find(manifest_.items, item.name, &ManifestItem::name);
  return saved == manifest_.items.end() ? nullptr : &*saved;
}

void OpenSnapshot::check(const ItemList& items, const RestoreOptions& options) {
  std::string own;
  const auto say = [&](const std::string& text) { own += fmt::format("{}{}", own.empty() ? "" : "; ", text); };
  for (const ManifestItem& saved : manifest_.items) {
    if (std::ranges::count(items.all(), saved.name, &ListedItem::name) == 0 && !options.allow_unexpected) {
      say(fmt::format("it has {}, which the program has not added", checkpoint::in_quotes(saved.name)));
    }
  }
  for (const ListedItem& item : items.all()) {
    const ManifestItem* const saved = find(item);
    if (saved == nullptr) {
      if (!options.allow_missing) {
        say(fmt::format("it lacks {}, which the program has added", checkpoint::in_quotes(item.name)));
      }
      continue;
    }
    try {
      // Don't compare whether the item and the saved item are sharded, because a sharded item may load tensors that
      // were saved whole, and the reverse.
      const bool was_per_rank = saved->kind == checkpoint::ItemKind::per_rank;
      if (saved->type != item.item->type() || was_per_rank != item.is_per_rank) {
        throw InvalidArgument(
            fmt::format("the item is of type {} in the snapshot, but the program's item is of type {}; add an item of "
                        "the snapshot's type under this name",
                        checkpoint::in_quotes(saved->type), checkpoint::in_quotes(item.item->type())));
      }
      const auto values = own_values(*saved, item.at_another_size, group_.rank(), group_.size());
      item.item->check(SharedItem(*this, *saved, values.value_or(item.item->values())), options);
    } catch (const Error& error) {
      say(fmt::format("{}: {}", item.name, error.what()));
    }
  }
  agree_on(group_, fmt::format("snapshots: '{}' does not fit this program", chosen_.path), [&] {
    if (!own.empty()) throw InvalidArgument(own);
  });
  compare_tied(items);
}

// check() calls compare_tied() only after every rank has found that its items fit the snapshot, because compare_tied()
// is collective, and a rank that has thrown would not call it.
void OpenSnapshot::compare_tied(const ItemList& items) {
  for (const ListedItem& item : items.all()) {
    const ManifestItem* const saved = find(item);
    if (saved == nullptr) continue;
    SharedItem shared(*this, *saved, {});
    for (const SnapshotTensor& tensor : item.item->tensors()) {
      if (tensor.other_names.empty()) continue;
      std::optional<std::string> first;
      std::vector<std::byte> bytes(tensor.bytes.size()), again(tensor.bytes.size());
      for (const std::string& name : tensor.names()) {
        if (!shared.tensors().contains(name)) continue;
        shared.read(name, first ? again : bytes);
        if (first && again != bytes) {
          throw InvalidArgument(fmt::format(
              "snapshots: '{}' does not fit this program: {}: {} and {} are tied in the program, and not equal in the "
              "snapshot; resume with the program that saved the snapshot, or give another folder",
              chosen_.path, item.name, checkpoint::in_quotes(*first), checkpoint::in_quotes(name)));
        }
        if (!first) first = name;
      }
    }
  }
}

void OpenSnapshot::load(const ItemList& items) {
  // Load the items in the snapshot's order, which is equal on all ranks, because the ranks read each file together.
  for (const ManifestItem& saved : manifest_.items) {
    const auto item = std::ranges::find(items.all(), saved.name, &ListedItem::name);
    if (item == items.all().end()) {
      log_warn(
          "snapshots: item {} of '{}' is left out, since the program has added no item of this name; add the item "
          "before restore() to load it",
          checkpoint::in_quotes(saved.name), chosen_.path);
      continue;
    }
    auto values = own_values(saved, item->at_another_size, group_.rank(), group_.size());
    if (!values) continue;
    SharedItem shared(*this, saved, *std::move(values));
    item->item->load(shared);
  }
}

}  // namespace lockstep
