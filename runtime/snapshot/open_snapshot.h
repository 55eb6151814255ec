// SPDX-License-Identifier: Apache-2.0
// OpenSnapshot has the contents of a chosen snapshot, and loads the contents into the program's items. For each file,
// one rank whose disk has the file reads the file and sends the bytes to all ranks.
//
// Threads: only the training's thread may call the functions of OpenSnapshot, and all calls are collective.
// Failure: check() throws InvalidArgument on every rank, and changes nothing. If reading a file fails, a call throws
//   CorruptData or SystemError on the rank that reads, and the group's errors on the other ranks.
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

  // Throws InvalidArgument on every rank if the snapshot does not fit the items of some rank.
  void check(const ItemList& items, const RestoreOptions& options);
  // Loads the snapshot's contents into the items. REQUIRES: check() has not thrown.
  void load(const ItemList& items);

 private:
  class SharedItem;
  using Tensors = std::map<std::string, checkpoint::SlicedTensor>;

  const checkpoint::ManifestItem* find(const ListedItem& item) const;
  // Throws InvalidArgument on every rank if a tensor has several names in the program (is tied), but different bytes
  // under these names in the snapshot.
  void compare_tied(const ItemList& items);

  ProcessGroup& group_;
  const Candidate chosen_;
  checkpoint::Manifest manifest_;
  std::map<std::string, Tensors> tensors_;  // the tensors of every item
  checkpoint::SnapshotFiles files_;         // the files that this rank reads
};

}  // namespace lockstep
