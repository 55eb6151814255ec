// SPDX-License-Identifier: Apache-2.0
// The items of a program's state, in the order in which the program added them, and how they are captured.
//
// Threads: the training's.
// Failure: InvalidArgument for a bad name, and for a shard with another number of bytes than it declares; the items'
//   exceptions; values() and compare() also throw the group's errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/snapshot_value.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep {

struct ListedItem {
  std::string name;
  std::shared_ptr<SnapshotItem> item;
  bool is_per_rank = false;
  AtAnotherSize at_another_size = AtAnotherSize::refuse;

  bool is_sharded() const { return item->is_sharded(); }
};

// An item as it is when a step ends.
struct CapturedItem {
  checkpoint::ManifestItem item;
  std::vector<SnapshotTensor> tensors;
};

// The parts of the items' state at the end of an earlier step that may have changed since.
struct KeptState {
  struct Tensor {
    std::size_t item = 0;
    SnapshotTensor now;
    std::vector<std::byte> bytes;  // at the end of that step
  };
  std::vector<checkpoint::SnapshotValues> values;  // by item, without fixed_values()
  std::vector<Tensor> tensors;
};

class ItemList {
 public:
  // The values of each item as a snapshot has them: one set, or one set for each rank.
  using Values = std::vector<std::vector<checkpoint::SnapshotValues>>;

  // `group` outlives this object.
  explicit ItemList(ProcessGroup& group) : group_(group) {}

  void add(ListedItem item);
  const std::vector<ListedItem>& all() const { return items_; }
  // Whether all ranks write a snapshot, because each rank has a shard of some item.
  bool are_sharded() const;
  // The size of a snapshot without shards, in bytes.
  std::uint64_t bytes() const;
  // Collective. Mismatch, on every rank, if ranks have added different items.
  void compare() const;

  // The values of the items now, or in `kept`. With `of_all_ranks` the call is collective if items have values of each
  // rank; without, the other ranks' values are empty.
  Values values(bool of_all_ranks, const KeptState* kept = nullptr) const;
  // The items that this rank saves. If it saves alone, all of them; otherwise rank 0 saves the whole items, and each
  // rank its slices of the sharded ones.
  std::vector<CapturedItem> capture(Values values, bool saves_alone, const KeptState* kept = nullptr) const;

 private:
  // Replaces, in a captured item that is sharded, whole tensors by the slices of this rank.
  void take_slices(CapturedItem& captured) const;

  ProcessGroup& group_;
  std::vector<ListedItem> items_;
};

}  // namespace lockstep
