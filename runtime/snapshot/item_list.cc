// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/item_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/comm/disagreement.h"

namespace lockstep {
namespace {

using checkpoint::SlicedTensor, checkpoint::SnapshotValues;

bool is_name(std::string_view name) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && std::all_of(name.begin(), name.end(), fits);
}

// Collective. Returns every rank's values, in rank order.
std::vector<SnapshotValues> gather_values(ProcessGroup& group, const SnapshotValues& own) {
  std::vector<SnapshotValues> all;
  for (const std::string& text : all_gather_text(group, checkpoint::to_text(own))) {
    all.push_back(checkpoint::values_from_text(text));
  }
  return all;
}

// If `kept` has a copy of a tensor of item number `item`, makes that tensor refer to the copied bytes.
void put_back(const KeptState& kept, std::size_t item, std::vector<SnapshotTensor>& tensors) {
  for (const KeptState::Tensor& known : kept.tensors) {
    for (SnapshotTensor& tensor : tensors) {
      if (known.item == item && known.now.name == tensor.name) tensor.bytes = known.bytes;
    }
  }
}

}  // namespace

void ItemList::add(ListedItem item) {
  const std::string shown = checkpoint::in_quotes(item.name);
  if (!is_name(item.name)) {
    throw InvalidArgument(
        fmt::format("Snapshots: add({}): an item can't have this name; give one of letters, digits, '_', '-' and '.', "
                    "at most 100 of them, that does not begin with '.'",
                    shown));
  }
  if (std::ranges::count(items_, item.name, &ListedItem::name) > 0) {
    throw InvalidArgument(
        fmt::format("Snapshots: add({}): another item has this name; give each item a name of its own", shown));
  }
  items_.push_back(std::move(item));
}

bool ItemList::are_sharded() const { return std::ranges::any_of(items_, &ListedItem::is_sharded); }

std::uint64_t ItemList::bytes() const {
  std::uint64_t bytes = 0;
  for (const ListedItem& item : items_) {
    for (const SnapshotTensor& tensor : item.item->tensors()) {
      bytes += tensor.bytes.size() * (1 + tensor.other_names.size());
    }
  }
  return bytes;
}

void ItemList::compare() const {
  std::vector<std::string> own;
  for (const ListedItem& item : items_) {
    own.push_back(fmt::format("{} ({}{})", checkpoint::in_quotes(item.name), item.item->type(),
                              item.is_per_rank    ? ", per rank"
                              : item.is_sharded() ? ", in shards"
                                                  : ""));
  }
  const std::vector<std::string> all = all_gather_text(group_, fmt::format("{}", fmt::join(own, ", ")));
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  comm::throw_disagreement(
      group_, fmt::format("Snapshots::restore: rank 0 has added {}, and rank {} {}; add the same in the same order on "
                          "every rank",
                          all[0], other - all.begin(), *other));
}

ItemList::Values ItemList::values(bool of_all_ranks, const KeptState* kept) const {
  Values all;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    SnapshotValues own = kept != nullptr ? kept->values[i] : items_[i].item->values();
    own.merge(items_[i].item->fixed_values());
    if (!items_[i].is_per_rank) {
      all.push_back({std::move(own)});
    } else if (of_all_ranks) {
      all.push_back(gather_values(group_, own));
    } else {
      all.emplace_back(group_.size())[static_cast<std::size_t>(group_.rank())] = std::move(own);
    }
  }
  return all;
}

std::vector<CapturedItem> ItemList::capture(Values values, bool saves_alone, const KeptState* kept) const {
  using checkpoint::ItemKind;
  std::vector<CapturedItem> captured;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const ListedItem& item = items_[i];
    if (!saves_alone && group_.rank() != 0 && !item.is_sharded()) continue;
    const ItemKind kind = item.is_sharded()  ? ItemKind::sharded
                          : item.is_per_rank ? ItemKind::per_rank
                                             : ItemKind::replicated;
    CapturedItem& one = captured.emplace_back(CapturedItem{.item = {.name = item.name,
                                                                    .type = item.item->type(),
                                                                    .kind = kind,
                                                                    .at_another_size = item.at_another_size,
                                                                    .values = std::move(values[i])},
                                                           .tensors = item.item->tensors()});
    if (kept != nullptr) put_back(*kept, i, one.tensors);
    if (item.is_sharded()) take_slices(one);
  }
  return captured;
}

void ItemList::take_slices(CapturedItem& captured) const {
  const std::string file = checkpoint::name_of_shard(captured.item.name, group_.rank());
  std::vector<SnapshotTensor> own;
  for (SnapshotTensor& tensor : captured.tensors) {
    const std::int64_t all =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies());
    // If every rank has the whole tensor, rank 0 saves the whole tensor as one slice, and the other ranks save nothing.
    const SnapshotShard shard = tensor.shard.value_or(SnapshotShard{0, group_.rank() == 0 ? all : 0});
    SlicedTensor& sliced = captured.item.sliced.emplace_back(
        SlicedTensor{.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .is_transposed = tensor.is_transposed && tensor.shard.has_value()});
    if (shard.begin == shard.end) continue;
    if (std::cmp_not_equal(tensor.bytes.size(),
                           static_cast<std::size_t>(shard.end - shard.begin) * size_of(tensor.dtype))) {
      throw InvalidArgument(
          fmt::format("Snapshots: item {}: tensor {} has {} bytes, but its elements {} to {} of {} take {} bytes; "
                      "correct the range of the item's shard",
                      captured.item.name, checkpoint::in_quotes(tensor.name), tensor.bytes.size(), shard.begin,
                      shard.end, checkpoint::describe(tensor.dtype, tensor.shape),
                      static_cast<std::size_t>(shard.end - shard.begin) * size_of(tensor.dtype)));
    }
    sliced.slices.push_back({file, shard.begin, shard.end});
    own.push_back(std::move(tensor));
  }
  captured.tensors = std::move(own);
}

}  // namespace lockstep
