// SPDX-License-Identifier: Apache-2.0
// ItemList holds the items of a program's state, in the order in which the program added the items, and captures the
// items for a snapshot.
//
// Threads: only the training's thread may call the functions of ItemList.
// Failure: add() throws InvalidArgument for a bad name; capture() throws InvalidArgument for a shard with a
//   wrong number of bytes. All functions of ItemList pass on exceptions of the items; values() and compare() also throw
//   the group's errors.
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

// A CapturedItem has the values and tensors of an item at the end of a step.
struct CapturedItem {
  checkpoint::ManifestItem item;
  std::vector<SnapshotTensor> tensors;
};

// KeptState has copies from the end of an earlier step: the items' values, and the tensors that may have changed since
// the step.
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
  // The values of all items in a snapshot. The inner vector has one set of values of an item, or one set for each rank.
  using Values = std::vector<std::vector<checkpoint::SnapshotValues>>;

  // `group` must outlive this object.
  explicit ItemList(ProcessGroup& group) : group_(group) {}

  void add(ListedItem item);
  const std::vector<ListedItem>& all() const { return items_; }
  // Returns whether some item is sharded (split between the ranks), so that every rank must write a part of a snapshot.
  bool are_sharded() const;
  // Returns the size in bytes of the items' tensors on this rank, which is a snapshot's size if no item is sharded.
  std::uint64_t bytes() const;
  // Collective. Throws Mismatch on every rank if ranks have added different items.
  void compare() const;

  // Returns the current values of the items, or the values in `kept` if `kept` is not null. If `of_all_ranks` is true
  // and an item has a value for each rank, values() is collective. If `of_all_ranks` is false, the returned values of
  // the other ranks are empty.
  Values values(bool of_all_ranks, const KeptState* kept = nullptr) const;
  // Returns the items that this rank saves. If `saves_alone` is true, this rank saves all items. If `saves_alone` is
  // false, rank 0 saves the items that are not sharded, and each rank saves its slices of the sharded items.
  std::vector<CapturedItem> capture(Values values, bool saves_alone, const KeptState* kept = nullptr) const;

 private:
  // Replaces the tensors of `captured`, which is a sharded item, by the slices of the tensors that this rank saves.
  void take_slices(CapturedItem& captured) const;

  ProcessGroup& group_;
  std::vector<ListedItem> items_;
};

}  // namespace lockstep
