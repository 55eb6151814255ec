// SPDX-License-Identifier: Apache-2.0
// OpenSnapshot has the contents of the chosen snapshot, as every rank knows them, and loads the contents into the
// program's items. One rank that has a file reads the file for all ranks.
//
// Threads: only the training's thread calls this class, and all calls are collective.
// Failure: check() throws InvalidArgument on every rank, and changes nothing. Reading throws CorruptData and
//   SystemError on the rank that reads, and the group's errors on the other ranks.
#pragma once

#include <map>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/snapshot/candidates.h"
#include "runtime/snapshot/item_list.h"

namespace lockstep {

class OpenSnapshot {
 public:
  // `group` must outlive this object.
  OpenSnapshot(ProcessGroup& group, Candidate chosen);

  const checkpoint::Manifest& manifest() const { return manifest_; }
  RestoredSnapshot restored() const;

  // Throws InvalidArgument on every rank if the contents don't fit some rank's items.
  void check(const ItemList& items, const RestoreOptions& options);
  // Loads the contents into the items, after check().
  void load(const ItemList& items);

 private:
  class SharedItem;
  using Tensors = std::map<std::string, checkpoint::SlicedTensor>;

  const checkpoint::ManifestItem* find(const ListedItem& item) const;
  // Throws InvalidArgument on every rank if the snapshot has different bits under the names of a tensor that is tied in
  // the program.
  void compare_tied(const ItemList& items);

  ProcessGroup& group_;
  const Candidate chosen_;
  checkpoint::Manifest manifest_;
  std::map<std::string, Tensors> tensors_;  // the tensors of every item
  checkpoint::SnapshotFiles files_;         // the files that this rank reads
};

}  // namespace lockstep
