// SPDX-License-Identifier: Apache-2.0
// One named part of a program's state: how a snapshot gets it, and gives it back.
//
// For who adds a kind of thing of their own; the model, optimizers, loaders and values have theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/snapshot_value.h"
#include "lockstep/device/dtype.h"

namespace lockstep {

// A tensor of an item, as it is at the end of a step.
struct SnapshotTensor {
  std::string name;  // in the item's file
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // in the file
  // Row-major, on the host. Without `is_copy` this is where the program computes: it is copied at once, or, if only
  // optimizers write it, behind the step, before the next backward ends.
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = nullptr;  // of the bytes, kept until they are copied
  bool is_copy = false;
  bool only_optimizers_write = false;
  // A matrix, [columns, rows] in memory: the file has it transposed.
  bool is_transposed = false;
  // Changes with every write. Null: writes can't be told.
  std::function<std::uint64_t()> version = nullptr;
};

// Differences that restore() may pass over. Items that the program has not added are logged.
struct RestoreOptions {
  bool allow_missing = false;     // the program has it and the snapshot has not: it stays as it is
  bool allow_unexpected = false;  // the snapshot has it and the program has not
};

// One item of the snapshot that is restored.
class LOCKSTEP_API SavedItem {
 public:
  struct Entry {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
  };

  virtual ~SavedItem() = default;
  virtual const std::string& name() const = 0;
  virtual const std::string& type() const = 0;
  // This rank's.
  virtual const checkpoint::SnapshotValues& values() const = 0;
  virtual const std::map<std::string, Entry>& tensors() const = 0;
  // The elements of a tensor, row-major as the file has them; `destination` has exactly their bytes. Collective, in
  // load() alone: each rank reads the same tensors in the same order.
  virtual void read(const std::string& tensor, std::span<std::byte> destination) = 0;
};

// Threads: the training's. Failure: what check() throws, all ranks throw, and nothing was changed.
class LOCKSTEP_API SnapshotItem {
 public:
  virtual ~SnapshotItem() = default;
  // "AdamW": another type's state is refused.
  virtual std::string type() const = 0;
  // Taken at the end of each step, to have them should it turn out to be the last.
  virtual checkpoint::SnapshotValues values() const { return {}; }
  // Those that no step changes.
  virtual checkpoint::SnapshotValues fixed_values() const { return {}; }
  virtual std::vector<SnapshotTensor> tensors() const { return {}; }
  // InvalidArgument that lists what is missing, unexpected or different, unless `options` allow it.
  virtual void check(const SavedItem& saved, const RestoreOptions& options) const = 0;
  virtual void load(SavedItem& saved) = 0;
};

// For check(): that `saved` has exactly the tensors `wanted`, by name, shape and dtype.
LOCKSTEP_API void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted,
                                const RestoreOptions& options);

}  // namespace lockstep
