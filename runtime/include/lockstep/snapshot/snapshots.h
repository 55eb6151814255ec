// SPDX-License-Identifier: Apache-2.0
// BasicSnapshots saves and restores a whole job: the part that lockstep::Snapshots (train/snapshots.h) and
// lockstep::libtorch::Snapshots (libtorch/snapshots.h) share.
//
//   lockstep::Snapshots snapshots("run7", ddp, {.every = 500});
//   snapshots.add("optimizer", optimizer);
//   snapshots.add("data", loader);          // or a sampler
//   snapshots.restore();                    // the newest, or a fresh start
//   for (...) {
//     ...
//     optimizer.step();
//     snapshots.step();                     // last in the loop
//   }
//   return ddp.exit_code();                 // 75 after a signal: run the command again
//
// - Collective: restore(), save(), save_if_best(), load_best_model(), and a step() that saves values or shards of each
//   rank.
// - Threads: the object belongs to the thread that trains. A thread of its own writes files while training continues.
// - Failure: restore() throws on every rank alike. A snapshot in the background that can't be written (the disk is
//   full) is logged, and training continues; save() throws, as on_rank0() does.
//
// A snapshot is a folder, run7/step-..., complete or absent. docs/SNAPSHOTS.md says what it costs and what a failure
// loses, docs/SNAPSHOT_FORMAT.md what the folder holds,
// docs/adr/0033-a-snapshot-is-written-by-one-rank-and-read-by-whoever-has-it.md why.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/snapshot_value.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/sampler.h"
#include "lockstep/device/dtype.h"
#include "lockstep/metrics/stop.h"

namespace lockstep {

// SnapshotItem and the types below tell a snapshot how to get and restore one named part of a program's state. Only
// programs that add a new kind of item need them: models, optimizers, loaders and values have theirs.

// Elements [begin, end) of a tensor, in the order of its memory.
struct SnapshotShard {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A tensor of an item, as it is at the end of a step.
struct SnapshotTensor {
  std::string name;  // its name in the item's file
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // the shape of the whole tensor
  // The bytes, row-major, on the host. With `is_copy` they are a copy. Otherwise the program computes with them, and
  // the snapshot copies them at once, or, if `only_optimizers_write`, after the step and before the next backward ends.
  std::span<const std::byte> bytes = {};
  // The owner of the bytes, kept until they are copied.
  std::shared_ptr<const void> owner = nullptr;
  bool is_copy = false;
  bool only_optimizers_write = false;
  // Whether `bytes` is a matrix [columns, rows], which the file has transposed. A shard stays in the order of memory.
  bool is_transposed = false;
  // The elements that `bytes` has in a sharded item, perhaps none; the shards of all ranks make up the tensor. nullopt:
  // every rank has the whole tensor.
  std::optional<SnapshotShard> shard = std::nullopt;
  // A number that changes with every write. Null: nobody counts writes.
  std::function<std::uint64_t()> version = nullptr;
  // Further names of a tied tensor. A file has its bytes under each name; restoring reads any of them, and those that a
  // snapshot has must have the same bits. Empty in a sharded item.
  std::vector<std::string> other_names = {};

  std::vector<std::string> names() const {
    std::vector<std::string> all{name};
    all.insert(all.end(), other_names.begin(), other_names.end());
    return all;
  }
};

// The differences that restore() accepts. The log lists items that the program has not added.
struct RestoreOptions {
  // Whether the snapshot may lack what the program has, which then keeps its value.
  bool allow_missing = false;
  // Whether the snapshot may have what the program lacks.
  bool allow_unexpected = false;
};

// One item of the snapshot that restore() reads.
class LOCKSTEP_API SavedItem {
 public:
  struct Entry {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
  };

  virtual ~SavedItem() = default;
  virtual const std::string& name() const = 0;
  virtual const std::string& type() const = 0;
  // This rank's values.
  virtual const checkpoint::SnapshotValues& values() const = 0;
  virtual const std::map<std::string, Entry>& tensors() const = 0;
  // Reads all elements of a tensor, row-major as in the file; `destination` has exactly their bytes. Collective, and
  // only in load(): each rank reads the same tensors in the same order.
  virtual void read(const std::string& tensor, std::span<std::byte> destination) = 0;
};

// A named part of the program's state.
// Threads: the thread that trains calls it.
// Failure: if check() throws, all ranks throw, and nothing has changed.
class LOCKSTEP_API SnapshotItem {
 public:
  virtual ~SnapshotItem() = default;
  // The type, such as "AdamW". restore() refuses the state of another type.
  virtual std::string type() const = 0;
  // The values, read at the end of each step, which may turn out to be the last.
  virtual checkpoint::SnapshotValues values() const { return {}; }
  // The values that no step changes.
  virtual checkpoint::SnapshotValues fixed_values() const { return {}; }
  virtual std::vector<SnapshotTensor> tensors() const { return {}; }
  // Whether each rank has only its shard of some tensors; tensors() then lists the same ones on every rank, and read()
  // gives whole tensors as always. The same on all ranks and for the item's lifetime.
  virtual bool is_sharded() const { return false; }
  // Throws InvalidArgument, which lists what is missing, unexpected or different, unless `options` allow it.
  virtual void check(const SavedItem& saved, const RestoreOptions& options) const = 0;
  virtual void load(SavedItem& saved) = 0;
};

// For check(): throws InvalidArgument unless `saved` has exactly the `wanted` tensors, by name, shape and dtype, or
// `options` allow the difference.
LOCKSTEP_API void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted,
                                const RestoreOptions& options);
// For check(): throws InvalidArgument that lists the names `missing` from the snapshot and `unexpected` in the program,
// if `options` do not allow them, and the texts of what is `different`.
LOCKSTEP_API void check_names(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                              const std::vector<std::string>& different, const RestoreOptions& options);
// For load(): the first of a tensor's names that `saved` has; nullopt if it has none.
LOCKSTEP_API std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names);

// When snapshots are saved, and which ones stay. Equal on all ranks.
struct SnapshotOptions {
  // The number of steps between two snapshots. 0: only save() saves.
  std::int64_t every = 0;
  // The number of newest snapshots that stay, at least 1. An older one is removed after a newer one is durable.
  int keep = 3;
  // A number of steps: snapshots of its multiples stay too. 0: none.
  std::int64_t keep_every = 0;
  // The number of snapshots with the best values given to save_if_best() that stay too. 0: none.
  int keep_best = 0;
  // Whether the higher of two values is the better one.
  bool higher_is_better = false;
  // Whether a surviving rank saves the last finished step from its memory to its own disk when a rank dies, or another
  // error ends the run: before its process ends, or while the exception unwinds this object. So a dead rank costs no
  // finished step. State that a forward changes in place (running statistics) is copied in each step() for that.
  //
  // docs/SNAPSHOTS.md, "When something fails", lists when the job resumes from the last saved step instead.
  bool rescue = true;
  // Whether restore() calls lockstep::stop_on_signals() (comm/stop.h). SIGTERM, SIGINT and SIGUSR1 of any rank then end
  // the training on all ranks after the same step, which step() saves; in an evaluation, this object's destructor saves
  // it. Under `lockstep run` the launcher also gives a rescue the time that it takes.
  bool stop_on_signals = true;
  RestoreOptions restore = {};
};

using checkpoint::AtAnotherSize;

// The snapshot from which a run resumed.
struct RestoredSnapshot {
  std::int64_t step = 0;
  // The folder on the disk of `rank`.
  std::filesystem::path path;
  int rank = 0;
  // The number of ranks in the run that wrote it.
  int world_size = 0;
  // The value given to save_if_best().
  std::optional<double> value = std::nullopt;
};

template <typename T>
concept SnapshotScalar = std::integral<T> || std::floating_point<T>;

// A type of value that a snapshot can keep.
template <typename T>
concept Snapshotable =
    SnapshotScalar<T> || std::same_as<T, std::string> || std::same_as<T, std::vector<std::int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>>;

// A loader or a sampler, which has a place in the data.
template <typename T>
concept HasPosition = requires(T& source, const T& constant, const data::SamplerState& state) {
  { constant.state() } -> std::convertible_to<data::SamplerState>;
  source.resume(state);
};

class LOCKSTEP_API BasicSnapshots {
 public:
  virtual ~BasicSnapshots();
  BasicSnapshots(const BasicSnapshots&) = delete;
  BasicSnapshots& operator=(const BasicSnapshots&) = delete;

  // Adds an item. `item` outlives this object. Its name is unique and consists of letters, digits, '_', '-' and '.';
  // "model" is the model. Call it before restore(), with the same items on all ranks; throws InvalidArgument otherwise.
  void add(std::string_view name, std::shared_ptr<SnapshotItem> item);
  // Adds a value of the program that is the same on all ranks; the snapshot keeps rank 0's. `value` outlives this
  // object.
  template <Snapshotable T>
  void add(std::string_view name, T& value) {
    add(name, value_item(pointer_to(value)));
  }
  // Adds a value that differs by rank. If it may not be dropped and a rank dies, the job resumes from the last saved
  // step, because no other rank has the dead rank's value. A rescue saves only the rescuing rank's value; on the other
  // ranks the value stays as the program sets it. `value` outlives this object.
  template <Snapshotable T>
  void add_per_rank(std::string_view name, T& value, AtAnotherSize at_another_size = AtAnotherSize::refuse) {
    add_per_rank(name, value_item(pointer_to(value)), at_another_size);
  }
  // Adds the place in the data. `source` outlives this object.
  template <HasPosition T>
  void add(std::string_view name, T& source) {
    add(name, position_item([&source] { return data::SamplerState(source.state()); },
                            [&source](const data::SamplerState& state) { source.resume(state); }));
  }
  void add(std::string_view name, EarlyStop& stop);

  // Collective, once, after everything is added. Restores the newest complete snapshot that any rank can read, which
  // sends it to all ranks; disks need not be shared, and the number of ranks may differ from the one that saved.
  // Returns nullopt and makes the folder if there is no snapshot. Snapshots that are incomplete or damaged are passed
  // over (logged).
  //
  // Throws, on every rank,
  //
  // - Mismatch if ranks have added different items;
  // - InvalidArgument, with nothing changed, if the snapshot does not fit the program, naming what differs; if another
  //   job uses the folder; if the disk has no room for one snapshot;
  // - PeerLost and the other errors of the group.
  std::optional<RestoredSnapshot> restore();
  // Ends a step of training: call it on every rank after the parameters and all that belongs to them are written. Saves
  // every SnapshotOptions::every-th step while training continues, and, before it returns, the step after which all
  // ranks have agreed to stop. The snapshot has the state at this call; rank 0 writes it to its own disk. If the
  // snapshot before is still being written, the new one is left out (logged).
  //
  // A due step() is collective if an item has a value of each rank, or is sharded (DdpOptions::shard). With a sharded
  // item each rank writes its shard to its own disk, rank 0 the rest, and the snapshot is left out if any rank still
  // writes. Any number of ranks resumes from it, with shards or without.
  //
  // InvalidArgument before restore(). Snapshots have no gradients: a backward that adds to the gradients of before
  // step(), or of before a save, throws InvalidArgument.
  void step();
  // Saves this step in the background, as step() does when a snapshot is due.
  void save_behind(std::string_view reason);
  // Collective. Saves now, and returns when the snapshot is durable.
  void save(std::string_view reason = "save()");
  // Collective, after an evaluation. Saves this step, as save_behind() does, if rank 0's `value` (a loss, say) is one
  // of the SnapshotOptions::keep_best best among the snapshots on rank 0's disk; returns whether it is. Of two equal
  // values the earlier step is the better one, and NaN never counts. If the step already has a snapshot, that one gets
  // the value. Snapshots that other calls saved have no value. InvalidArgument if keep_best is 0.
  bool save_if_best(double value);
  // Collective, after the training. Restores the model, and nothing else, from the snapshot with the best value that
  // any rank has; returns nullopt if no snapshot has a value. After that nothing is saved: step() and save() throw
  // InvalidArgument. Throws what restore() throws, but passes over a damaged snapshot.
  std::optional<RestoredSnapshot> load_best_model();
  // Waits until the snapshot that is being written is durable or has failed (logged). Only rank 0 waits, unless an item
  // is sharded: then this call and the destructor are collective, because each rank's file ends with the other
  // ranks' files. Throws PeerLost and the other errors of the group.
  void wait();

 protected:
  // The steps of a DistributedDataParallel.
  struct Steps {
    std::function<std::int64_t()> count;
    std::function<void(std::int64_t)> set;
    // Runs an action from now on at the end of each synchronised backward, before the program's optimizers write.
    std::function<void(std::function<void()>)> before_update;
    // Runs an action at the beginning of the next backward that adds to earlier gradients.
    std::function<void(std::function<void()>)> before_adding;
    // Whether the device has finished what the last synchronised backward started there; never waits.
    std::function<bool()> is_over;
    // Runs an action from now on in each forward, after rank 0's buffers have arrived. Null if modules have no buffers.
    std::function<void(std::function<void()>)> after_broadcast = nullptr;
  };
  // Follows another DistributedDataParallel whose module is an item: its steps are saved as `name`, and a death while
  // its optimizer writes is told apart from a death between steps. Before restore().
  void follow(std::string_view name, Steps steps);
  BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                 const SnapshotOptions& options);

 private:
  // Functions that read and write a value of the program.
  struct ValueAccess {
    std::function<checkpoint::SnapshotValue()> get;
    std::function<void(const checkpoint::SnapshotValues&, std::string_view)> set;
  };
  template <typename T>
  static ValueAccess pointer_to(T& value);
  static std::shared_ptr<SnapshotItem> value_item(ValueAccess access);
  static std::shared_ptr<SnapshotItem> position_item(std::function<data::SamplerState()> get,
                                                     std::function<void(const data::SamplerState&)> set);
  void add_per_rank(std::string_view name, std::shared_ptr<SnapshotItem> item, AtAnotherSize at_another_size);

  struct LOCKSTEP_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

// Throws InvalidArgument: the number does not fit the program's type.
[[noreturn]] LOCKSTEP_API void refuse_snapshot_number(std::string_view name);

template <typename T>
BasicSnapshots::ValueAccess BasicSnapshots::pointer_to(T& value) {
  using checkpoint::SnapshotValue, checkpoint::SnapshotValues;
  const auto get = [&value]() -> SnapshotValue {
    if constexpr (std::same_as<T, bool>) {
      return value;
    } else if constexpr (std::unsigned_integral<T>) {
      return static_cast<std::uint64_t>(value);
    } else if constexpr (std::integral<T>) {
      return static_cast<std::int64_t>(value);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<double>(value);
    } else {
      return value;
    }
  };
  const auto set = [&value](const SnapshotValues& values, std::string_view name) {
    if constexpr (std::same_as<T, bool>) {
      value = checkpoint::get_bool(values, name);
    } else if constexpr (std::unsigned_integral<T>) {
      const std::uint64_t number = checkpoint::get_uint(values, name);
      if (!std::in_range<T>(number)) refuse_snapshot_number(name);
      value = static_cast<T>(number);
    } else if constexpr (std::integral<T>) {
      const std::int64_t number = checkpoint::get_int(values, name);
      if (!std::in_range<T>(number)) refuse_snapshot_number(name);
      value = static_cast<T>(number);
    } else if constexpr (std::floating_point<T>) {
      value = static_cast<T>(checkpoint::get_double(values, name));
    } else if constexpr (std::same_as<T, std::string>) {
      value = checkpoint::get_text(values, name);
    } else if constexpr (std::same_as<T, std::vector<std::int64_t>>) {
      value = checkpoint::get_ints(values, name);
    } else if constexpr (std::same_as<T, std::vector<double>>) {
      value = checkpoint::get_doubles(values, name);
    } else {
      value = checkpoint::get_texts(values, name);
    }
  };
  return {get, set};
}

}  // namespace lockstep
