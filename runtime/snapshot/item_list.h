// SPDX-License-Identifier: Apache-2.0
// ItemList has the items of a program's state, in the order in which the program added the items, and captures
// the items.
//
// Threads: only the training's thread calls this class.
// Failure: throws InvalidArgument for a bad name, and for a shard with another number of bytes than the shard declares.
//   Passes on the items' exceptions. values() and compare() also throw the group's errors.
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

// CapturedItem is an item as it is when a step ends.
struct CapturedItem {
  checkpoint::ManifestItem item;
  std::vector<SnapshotTensor> tensors;
};

// KeptState has the parts of the items' state at the end of an earlier step that may have changed since that step.
struct KeptState {
  struct Tensor {
    std::size_t item = 0;
    SnapshotTensor now;
    std::vector<std::byte> bytes;  // the bytes at the end of the earlier step
  };
  std::vector<checkpoint::SnapshotValues> values;  // the values of each item, without fixed_values()
  std::vector<Tensor> tensors;
};

class ItemList {
 public:
  // The values of each item in a snapshot: one set, or one set for each rank.
  using Values = std::vector<std::vector<checkpoint::SnapshotValues>>;

  // `group` must outlive this object.
  explicit ItemList(ProcessGroup& group) : group_(group) {}

  void add(ListedItem item);
  const std::vector<ListedItem>& all() const { return items_; }
  // Returns whether all ranks write a snapshot, because each rank has a shard of some item.
  bool are_sharded() const;
  // Returns the size of a snapshot without shards, in bytes.
  std::uint64_t bytes() const;
  // Collective. Throws Mismatch on every rank if ranks have added different items.
  void compare() const;

  // Returns the present values of the items, or the values in `kept`. With `of_all_ranks` the call is collective if an
  // item has a value for each rank. Without `of_all_ranks`, the other ranks' values are empty.
  Values values(bool of_all_ranks, const KeptState* kept = nullptr) const;
  // Returns the items that this rank saves. A rank that saves alone saves all items. Otherwise rank 0 saves the items
  // without shards, and each rank saves its slices of the sharded items.
  std::vector<CapturedItem> capture(Values values, bool saves_alone, const KeptState* kept = nullptr) const;

 private:
  // Replaces the whole tensors of a captured, sharded item by this rank's slices.
  void take_slices(CapturedItem& captured) const;

  ProcessGroup& group_;
  std::vector<ListedItem> items_;
};

}  // namespace lockstep
