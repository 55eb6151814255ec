// SPDX-License-Identifier: Apache-2.0
// BasicSnapshots saves and restores a whole job. BasicSnapshots is the base class of lockstep::Snapshots
// (train/snapshots.h) and lockstep::libtorch::Snapshots (libtorch/snapshots.h).
//
//   lockstep::Snapshots snapshots("run7", ddp, {.every = 500});
//   snapshots.add("optimizer", optimizer);
//   snapshots.add("data", loader);          // or a sampler
//   snapshots.restore();                    // the newest snapshot, or a fresh start
//   for (...) {
//     ...
//     optimizer.step();
//     snapshots.step();                     // last in the loop
//   }
//   return ddp.exit_code();                 // 75 after a signal: run the command again
//
// - Collective: restore(), save(), save_if_best() and load_best_model() are collective, and also a step() that saves
//   values or shards of each rank.
// - Threads: the object belongs to the thread that trains. A background thread writes files while training continues.
// - Failure: if restore() throws, it throws on every rank. If the background thread can't write a snapshot (the disk is
//   full), the failure is logged, and training continues; save() throws, as on_rank0() does.
//
// A snapshot is a folder, run7/step-..., which is complete or absent. docs/SNAPSHOTS.md describes costs and failures,
// docs/SNAPSHOT_FORMAT.md the folder's contents, and
// docs/adr/0033-a-snapshot-is-written-by-one-rank-and-read-by-whoever-has-it.md the reasons.
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

// SnapshotItem and the types below define how a snapshot gets and restores one named part of a program's state. Only
// programs that add a new kind of item need these types: the library has items for models, optimizers, loaders
// and values.

// SnapshotShard is elements [begin, end) of a tensor, in memory order.
struct SnapshotShard {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// SnapshotTensor is a tensor of an item, with its value at the end of a step.
struct SnapshotTensor {
  std::string name;  // the tensor's name in the item's file
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // the shape of the whole tensor
  // The tensor's bytes, row-major, on the host. With `is_copy` the bytes are a copy for the snapshot. Without `is_copy`
  // the program computes with the bytes, and the snapshot copies them at once. If `only_optimizers_write`, the snapshot
  // copies them after the step and before the next backward ends.
  std::span<const std::byte> bytes = {};
  // The owner of the bytes, which the snapshot keeps until the bytes are copied.
  std::shared_ptr<const void> owner = nullptr;
  bool is_copy = false;
  bool only_optimizers_write = false;
  // If true, `bytes` is a matrix [columns, rows] that the file stores transposed. A shard is always stored in
  // memory order.
  bool is_transposed = false;
  // The elements of the tensor that `bytes` has in a sharded item, perhaps none; the shards of all ranks together are
  // the tensor. If `shard` is nullopt, every rank has the whole tensor.
  std::optional<SnapshotShard> shard = std::nullopt;
  // A function that returns a number which changes with every write to the tensor. If `version` is null, writes are
  // not counted.
  std::function<std::uint64_t()> version = nullptr;
  // The further names of a tied tensor; empty in a sharded item. A file has the tensor's bytes under each name.
  // Restoring reads any of the names; if a snapshot has several of them, their tensors must have equal bits.
  std::vector<std::string> other_names = {};

  std::vector<std::string> names() const {
    std::vector<std::string> all{name};
    all.insert(all.end(), other_names.begin(), other_names.end());
    return all;
  }
};

// RestoreOptions says which differences restore() accepts. The log lists items of the snapshot that the program has
// not added.
struct RestoreOptions {
  // If true, the snapshot may lack state of the program. State that the snapshot lacks keeps its value.
  bool allow_missing = false;
  // If true, the snapshot may have state that the program lacks.
  bool allow_unexpected = false;
};

// SavedItem is an item of the snapshot that restore() reads.
class LOCKSTEP_API SavedItem {
 public:
  struct Entry {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
  };

  virtual ~SavedItem() = default;
  virtual const std::string& name() const = 0;
  virtual const std::string& type() const = 0;
  // Returns this rank's values.
  virtual const checkpoint::SnapshotValues& values() const = 0;
  virtual const std::map<std::string, Entry>& tensors() const = 0;
  // Reads all elements of a tensor, row-major as in the file; the size of `destination` is the tensor's size. The call
  // is collective, and allowed only in load(): all ranks read the tensors in one order.
  virtual void read(const std::string& tensor, std::span<std::byte> destination) = 0;
};

// SnapshotItem is a named part of the program's state.
// Threads: only the thread that trains calls an item.
// Failure: if check() throws on a rank, restore() throws on all ranks and changes nothing.
class LOCKSTEP_API SnapshotItem {
 public:
  virtual ~SnapshotItem() = default;
  // Returns the item's type, such as "AdamW". restore() refuses the state of another type.
  virtual std::string type() const = 0;
  // Returns the values that may change in a step. Snapshots call values() at the end of each step, because each step
  // may be the last step.
  virtual checkpoint::SnapshotValues values() const { return {}; }
  // Returns the values that no step changes.
  virtual checkpoint::SnapshotValues fixed_values() const { return {}; }
  virtual std::vector<SnapshotTensor> tensors() const { return {}; }
  // Returns whether each rank has only its shard of some tensors. The result is equal on all ranks and never changes.
  // tensors() lists the same tensors on every rank, and SavedItem::read() always reads whole tensors.
  virtual bool is_sharded() const { return false; }
  // Throws InvalidArgument, which lists missing, unexpected and different state, unless `options` allow
  // these differences.
  virtual void check(const SavedItem& saved, const RestoreOptions& options) const = 0;
  virtual void load(SavedItem& saved) = 0;
};

// Throws InvalidArgument unless `saved` has exactly the `wanted` tensors, by name, shape and dtype, or `options` allow
// the difference. Implementations of check() call this function.
LOCKSTEP_API void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted,
                                const RestoreOptions& options);
// Throws InvalidArgument if `different` is not empty, or if `options` do not allow the names `missing` from the
// snapshot or `unexpected` by the program. The message lists the names and the texts in `different`. Implementations of
// check() call this function.
LOCKSTEP_API void check_names(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                              const std::vector<std::string>& different, const RestoreOptions& options);
// Returns the first of a tensor's `names` that `saved` has, or nullopt if `saved` has no tensor of these names.
// Implementations of load() call this function.
LOCKSTEP_API std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names);

// SnapshotOptions says when snapshots are saved, and which snapshots stay. The options are equal on all ranks.
struct SnapshotOptions {
  // The number of steps between two snapshots. With 0, step() saves no snapshots except at a stop.
  std::int64_t every = 0;
  // The number of newest snapshots that stay, at least 1. An older snapshot is removed after a newer snapshot
  // is durable.
  int keep = 3;
  // Snapshots whose step is a multiple of keep_every stay too. With 0 no further snapshots stay.
  std::int64_t keep_every = 0;
  // The number of snapshots that stay because their values given to save_if_best() are the best. With 0 no snapshot
  // stays for its value.
  int keep_best = 0;
  // If true, the higher of two values is the better value.
  bool higher_is_better = false;
  // If true, a surviving rank saves the last finished step from its memory to its own disk when a rank dies, or another
  // error ends the run. So a dead rank costs no finished step. The rank saves before its process ends, or while the
  // exception unwinds this object. State that a forward changes in place (running statistics) is copied in each step()
  // for this rescue.
  //
  // docs/SNAPSHOTS.md, "When something fails", lists the failures after which the job resumes from the last saved
  // step instead.
  bool rescue = true;
  // If true, restore() calls lockstep::stop_on_signals() (comm/stop.h). SIGTERM, SIGINT and SIGUSR1 of any rank then
  // end the training on all ranks after one step, which all ranks agree on. step() saves this step; if the ranks agree
  // in an evaluation, this object's destructor saves the last step. Under `lockstep run` the launcher also waits for a
  // rescue to finish.
  bool stop_on_signals = true;
  RestoreOptions restore = {};
};

using checkpoint::AtAnotherSize;

// RestoredSnapshot describes the snapshot from which a run resumed.
struct RestoredSnapshot {
  std::int64_t step = 0;
  // The snapshot's folder on the disk of `rank`.
  std::filesystem::path path;
  int rank = 0;
  // The number of ranks in the run that wrote the snapshot.
  int world_size = 0;
  // The value given to save_if_best(); nullopt if the snapshot has no value.
  std::optional<double> value = std::nullopt;
};

template <typename T>
concept SnapshotScalar = std::integral<T> || std::floating_point<T>;

// Snapshotable is a type of value that a snapshot can keep.
template <typename T>
concept Snapshotable =
    SnapshotScalar<T> || std::same_as<T, std::string> || std::same_as<T, std::vector<std::int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>>;

// HasPosition is a loader or a sampler, which has a place in the data.
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

  // Adds an item. `name` is unique and consists of letters, digits, '_', '-' and '.'; the name "model" is the model's.
  // All ranks add equal items in one order, before restore(). Throws InvalidArgument after restore(), or for a
  // wrong name.
  void add(std::string_view name, std::shared_ptr<SnapshotItem> item);
  // Adds a value of the program that is equal on all ranks; the snapshot keeps rank 0's value. `value` outlives
  // this object.
  template <Snapshotable T>
  void add(std::string_view name, T& value) {
    add(name, value_item(pointer_to(value)));
  }
  // Adds a value that differs by rank. `value` outlives this object. If a rank dies, no other rank has the dead rank's
  // value: unless at_another_size is AtAnotherSize::drop, the job then resumes from the last saved step. With
  // AtAnotherSize::drop a rescue saves only the rescuing rank's value, and the other ranks keep the value that the
  // program sets.
  template <Snapshotable T>
  void add_per_rank(std::string_view name, T& value, AtAnotherSize at_another_size = AtAnotherSize::refuse) {
    add_per_rank(name, value_item(pointer_to(value)), at_another_size);
  }
  // Adds the place in the data of `source`, a loader or sampler. `source` outlives this object.
  template <HasPosition T>
  void add(std::string_view name, T& source) {
    add(name, position_item([&source] { return data::SamplerState(source.state()); },
                            [&source](const data::SamplerState& state) { source.resume(state); }));
  }
  void add(std::string_view name, EarlyStop& stop);

  // Restores the newest complete snapshot that any rank can read; this rank sends the snapshot to all ranks. The call
  // is collective, and comes once, after all items are added. Disks need not be shared, and the run that
  // saved may have had another number of ranks. If there is no snapshot, makes the folder and returns nullopt.
  // Incomplete and damaged snapshots are logged and skipped.
  //
  // If restore() throws, it throws on every rank:
  //
  // - Mismatch is thrown if ranks have added different items.
  // - InvalidArgument is thrown if the snapshot does not fit the program, if another job uses the folder, or if the
  //   disk has no room for one snapshot. The message lists the differences, and restore() has changed nothing.
  // - PeerLost and the other errors of the group are thrown if the group fails.
  std::optional<RestoredSnapshot> restore();
  // Ends a step of training. Every rank calls step() after the parameters and all state that belongs to them are
  // written. step() saves every SnapshotOptions::every-th step while training continues. After the step at which all
  // ranks have agreed to stop, step() saves before it returns. The snapshot has the state at this call; rank 0 writes
  // the snapshot to its own disk. If the previous snapshot is still being written, the new snapshot is left
  // out (logged).
  //
  // A step() that saves is collective if an item has a value of each rank, or is sharded (DdpOptions::shard). With a
  // sharded item each rank writes its shard to its own disk, and rank 0 also writes the rest; the snapshot is left out
  // if any rank still writes. Any number of ranks can resume from the snapshot, with shards or without.
  //
  // Throws InvalidArgument before restore(). Snapshots have no gradients: a backward that adds to gradients from before
  // step(), or from before a save, throws InvalidArgument.
  void step();
  // Saves this step in the background, as step() does every SnapshotOptions::every-th step.
  void save_behind(std::string_view reason);
  // Saves this step, and returns when the snapshot is durable. The call is collective.
  void save(std::string_view reason = "save()");
  // Saves this step, as save_behind() does, if rank 0's `value` (a loss, say) is one of the SnapshotOptions::keep_best
  // best values among the snapshots on rank 0's disk. Returns whether the value is one of the best. The call is
  // collective, and comes after an evaluation. Of two equal values the value of the earlier step is the better value,
  // and NaN is never one of the best. If the step already has a snapshot, this snapshot gets the value. Snapshots that
  // other calls saved have no value. Throws InvalidArgument if keep_best is 0.
  bool save_if_best(double value);
  // Restores only the model, from the snapshot with the best value that any rank has. Returns nullopt if no snapshot
  // has a value. The call is collective, and comes after the training. After the model was restored, step() and save()
  // throw InvalidArgument. Throws the errors of restore(), but skips a damaged snapshot.
  std::optional<RestoredSnapshot> load_best_model();
  // Waits until the snapshot that is being written is durable or has failed (logged). Only rank 0 waits. As an
  // exception, if an item is sharded, this call and the destructor are collective, because the ranks finish their files
  // together. Throws PeerLost and the other errors of the group.
  void wait();

 protected:
  // Steps has the functions of a DistributedDataParallel that snapshots need.
  struct Steps {
    std::function<std::int64_t()> count;
    std::function<void(std::int64_t)> set;
    // Makes each synchronised backward run an action at its end, before the program's optimizers write.
    std::function<void(std::function<void()>)> before_update;
    // Makes the next backward that adds to earlier gradients run an action at its beginning.
    std::function<void(std::function<void()>)> before_accumulate;
    // Returns whether the device has finished the work that the last synchronised backward started; never waits.
    std::function<bool()> is_over;
    // Makes each forward run an action after rank 0's buffers have arrived. Null if modules have no buffers.
    std::function<void(std::function<void()>)> after_broadcast = nullptr;
  };
  // Follows another DistributedDataParallel whose module is an item, and saves its number of steps as `name`. A rescue
  // can then tell a death while its optimizer writes from a death between steps. Subclasses call follow()
  // before restore().
  void follow(std::string_view name, Steps steps);
  BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                 const SnapshotOptions& options);

 private:
  // ValueAccess has functions that read and write a value of the program.
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

// Throws InvalidArgument, which says that the snapshot's number `name` does not fit the program's type.
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
