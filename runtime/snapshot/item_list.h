// SPDX-License-Identifier: Apache-2.0
// The items of a program's state, in the order in which the program added them, and the one way to capture them.
//
// Threads: the training's. Failure: InvalidArgument for a bad name, and for a share that has other bytes than it says;
// what the items throw; of values() and compare() the group's errors.
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

// The state of the items at the end of an earlier step, as far as it may differ from what they have now.
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
  // By item, its values as a snapshot has them: one, or one of each rank.
  using Values = std::vector<std::vector<checkpoint::SnapshotValues>>;

  // `group` outlives this object.
  explicit ItemList(ProcessGroup& group) : group_(group) {}

  void add(ListedItem item);
  const std::vector<ListedItem>& all() const { return items_; }
  // Whether all ranks write a snapshot: of some item each rank has a share.
  bool are_sharded() const;
  // The size of a snapshot without shares.
  std::uint64_t bytes() const;
  // Collective. Mismatch, on every rank, where ranks have added different items.
  void compare() const;

  // The values of the items now, or in `kept`. With `of_all_ranks` it is collective if items have values of each rank;
  // without, the other ranks' values are empty.
  Values values(bool of_all_ranks, const KeptState* kept = nullptr) const;
  // The items that this rank saves: all of them if it saves alone; else rank 0 the whole ones, and each rank its slices
  // of sharded ones.
  std::vector<CapturedItem> capture(Values values, bool saves_alone, const KeptState* kept = nullptr) const;

 private:
  // In a captured item that is sharded puts the slices of this rank in place of whole tensors.
  void take_slices(CapturedItem& captured) const;

  ProcessGroup& group_;
  std::vector<ListedItem> items_;
};

}  // namespace lockstep
