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
// Collective: restore(), save(), save_if_best() and load_best_model() are collective. A call of step() is collective if
//   it saves shards, or values that differ from rank to rank.
// Threads: a BasicSnapshots object belongs to the thread that trains. A background thread writes the snapshot's files
//   while training continues.
// Failure: if restore() throws on one rank, restore() throws on every rank. If the background thread can't write a
//   snapshot (the disk is full, say), the failure is logged, and training continues. If save() can't write the
//   snapshot, save() throws on every rank, with the exceptions that on_rank0() throws.
//
// A snapshot is a folder, such as run7/step-..., which is either complete or does not exist. The costs and failures of
// snapshots are described in docs/SNAPSHOTS.md, and the folder's contents in docs/SNAPSHOT_FORMAT.md. The reasons are
// in docs/adr/0033-a-snapshot-is-written-by-one-rank-and-read-by-whoever-has-it.md.
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

// SnapshotItem and the types below define how a snapshot reads and restores one named part of a program's state. A
// program needs SnapshotItem only to save a new kind of state: the library has items for models, optimizers, loaders
// and values.

// SnapshotShard is the range of the elements [begin, end) of a tensor, in memory order.
struct SnapshotShard {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// SnapshotTensor is one tensor of a SnapshotItem, with the tensor's value at the end of a step.
struct SnapshotTensor {
  std::string name;  // the tensor's name in the item's file
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // the shape of the whole tensor
  // The tensor's bytes, row-major, on the host. If `is_copy` is true, `bytes` is a copy that was made for the snapshot.
  // If `is_copy` and `only_optimizers_write` are false, the program may change `bytes` at any time, so the snapshot
  // copies `bytes` at once. If `only_optimizers_write` is true, the snapshot copies `bytes` between the end of the step
  // and the end of the next backward.
  std::span<const std::byte> bytes = {};
  // The owner of the memory of `bytes`; the snapshot keeps the owner alive until the snapshot has copied `bytes`.
  std::shared_ptr<const void> owner = nullptr;
  bool is_copy = false;
  bool only_optimizers_write = false;
  // If true, `bytes` is a matrix [columns, rows] that the file stores transposed. A shard of such a matrix is not
  // transposed: the file stores a shard's elements in memory order.
  bool is_transposed = false;
  // The range of the tensor's elements that `bytes` holds in a sharded item; the range may be empty. The shards of all
  // ranks together make up the whole tensor. If `shard` is nullopt, every rank has the whole tensor.
  std::optional<SnapshotShard> shard = std::nullopt;
  // The function that returns the tensor's version, a number that changes with every write to the tensor. If `version`
  // is null, writes are not counted.
  std::function<std::uint64_t()> version = nullptr;
  // The names of a tied tensor in addition to `name`; the list is empty in a sharded item. The item's file has the
  // bytes of a tied tensor under each of the tensor's names. A restore() reads a tied tensor under any of the tensor's
  // names; if the snapshot has several of these names, the bytes under these names must be equal.
  std::vector<std::string> other_names = {};

  std::vector<std::string> names() const {
    std::vector<std::string> all{name};
    all.insert(all.end(), other_names.begin(), other_names.end());
    return all;
  }
};

// RestoreOptions says which differences restore() accepts. A restore() logs the names of the items that the snapshot
// has but the program has not added.
struct RestoreOptions {
  // If true, the snapshot may lack some of the program's state. State that the snapshot lacks keeps the value that the
  // program has set.
  bool allow_missing = false;
  // If true, the snapshot may have state that the program lacks.
  bool allow_unexpected = false;
};

// SavedItem gives access to one item of the snapshot that restore() reads.
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
  // Reads all elements of a tensor, in the file's row-major order; the size of `destination` must be the tensor's size
  // in bytes. The call of read() is collective, and allowed only in SnapshotItem::load(): all ranks must read the
  // tensors in the same order.
  virtual void read(const std::string& tensor, std::span<std::byte> destination) = 0;
};

// SnapshotItem is a named part of the program's state that snapshots save and restore.
// Threads: only the thread that trains calls a SnapshotItem's functions.
// Failure: if check() throws on any rank, restore() throws on all ranks and changes nothing.
class LOCKSTEP_API SnapshotItem {
 public:
  virtual ~SnapshotItem() = default;
  // Returns the item's type, such as "AdamW". A restore() throws if the snapshot's item of the same name has
  // another type.
  virtual std::string type() const = 0;
  // Returns the item's values that may change in a step. Snapshots call values() at the end of each step, because any
  // step may turn out to be the last step.
  virtual checkpoint::SnapshotValues values() const { return {}; }
  // Returns the values that no step changes.
  virtual checkpoint::SnapshotValues fixed_values() const { return {}; }
  virtual std::vector<SnapshotTensor> tensors() const { return {}; }
  // Returns whether each rank has only its own shard of some of the item's tensors. The result of is_sharded() must be
  // equal on all ranks and must never change. In a sharded item tensors() lists the same tensors on every rank, and
  // SavedItem::read() still reads whole tensors.
  virtual bool is_sharded() const { return false; }
  // Throws InvalidArgument if `saved` differs from the program's state in a way that `options` do not allow. The
  // exception's message lists the missing, unexpected and different state.
  virtual void check(const SavedItem& saved, const RestoreOptions& options) const = 0;
  virtual void load(SavedItem& saved) = 0;
};

// Throws InvalidArgument unless `saved` has exactly the `wanted` tensors, by name, shape and dtype. `options` may allow
// missing and unexpected tensors. Implementations of SnapshotItem::check() call check_tensors().
LOCKSTEP_API void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted,
                                const RestoreOptions& options);
// Throws InvalidArgument if `different` is not empty. Also throws InvalidArgument if `missing` (names that the snapshot
// lacks) or `unexpected` (names that the program lacks) is not empty, unless `options` allows such names. The
// exception's message lists all these names, and the texts in `different`. Implementations of SnapshotItem::check()
// call check_names().
LOCKSTEP_API void check_names(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                              const std::vector<std::string>& different, const RestoreOptions& options);
// Returns the first name in `names` under which `saved` has a tensor, or nullopt if `saved` has no tensor of these
// names. Implementations of SnapshotItem::load() call name_in().
LOCKSTEP_API std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names);

// SnapshotOptions says when snapshots are saved, and which snapshots are kept. SnapshotOptions must be equal on
// all ranks.
struct SnapshotOptions {
  // The number of steps between two snapshots. If `every` is 0, step() saves a snapshot only when the ranks have agreed
  // to stop.
  std::int64_t every = 0;
  // The number of newest snapshots that are kept, at least 1. An older snapshot is removed only after a newer snapshot
  // is durable.
  int keep = 3;
  // Snapshots whose step is a multiple of keep_every are kept in addition to the newest snapshots. If keep_every is 0,
  // no snapshot is kept because of its step.
  std::int64_t keep_every = 0;
  // The number of snapshots that are kept because they have the best values (see save_if_best()). If keep_best is 0, no
  // snapshot is kept for its value.
  int keep_best = 0;
  // If true, the higher of two values given to save_if_best() is the better value.
  bool higher_is_better = false;
  // If true, and a rank dies or another error ends the run, a surviving rank saves the last finished step from its
  // memory to its own disk. With `rescue` no finished step is lost if a rank dies. The surviving rank saves the step
  // before its process ends, or when the BasicSnapshots object is destroyed, by an exception or after the group has
  // failed. For a rescue, each step() copies the state that a forward changes in place, such as running statistics.
  //
  // Some failures allow no rescue, and the job then resumes from the last saved step. The failures that allow no rescue
  // are listed in docs/SNAPSHOTS.md, "When something fails".
  bool rescue = true;
  // If true, restore() calls lockstep::stop_on_signals() (comm/stop.h). With `stop_on_signals` a SIGTERM, SIGINT or
  // SIGUSR1 on any rank ends the training on all ranks, after a step that all ranks agree on. The snapshot of the last
  // step is saved by step(), or, if the ranks agree to stop during an evaluation, by the destructor of BasicSnapshots.
  // Under `lockstep run` the launcher also waits until a rescue has finished.
  bool stop_on_signals = true;
  RestoreOptions restore = {};
};

using checkpoint::AtAnotherSize;

// RestoredSnapshot describes the snapshot from which a run resumed.
struct RestoredSnapshot {
  std::int64_t step = 0;
  // The path of the snapshot's folder on the disk of the rank with the number `rank`.
  std::filesystem::path path;
  int rank = 0;
  // The number of ranks in the run that wrote the snapshot.
  int world_size = 0;
  // The value that save_if_best() got for the snapshot; nullopt if the snapshot has no value.
  std::optional<double> value = std::nullopt;
};

template <typename T>
concept SnapshotScalar = std::integral<T> || std::floating_point<T>;

// Snapshotable is the concept of a type whose values a snapshot can store.
template <typename T>
concept Snapshotable =
    SnapshotScalar<T> || std::same_as<T, std::string> || std::same_as<T, std::vector<std::int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>>;

// HasPosition is the concept of a loader or a sampler whose position in the data a snapshot can store.
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

  // Adds an item. `name` must be unique and consist of letters, digits, '_', '-' and '.'; the name "model" is reserved
  // for the model. All ranks must add equal items in the same order, before restore() is called. Throws InvalidArgument
  // if restore() was called before, or if `name` is not valid.
  void add(std::string_view name, std::shared_ptr<SnapshotItem> item);
  // Adds a value of the program that is equal on all ranks; the snapshot stores rank 0's value. `value` outlives
  // this object.
  template <Snapshotable T>
  void add(std::string_view name, T& value) {
    add(name, value_item(pointer_to(value)));
  }
  // Adds a value that differs by rank. `value` outlives this object. If a rank dies, the rank's value is lost, because
  // no other rank has a copy of this value. After a rank has died, the job therefore resumes from the last saved step,
  // unless at_another_size is AtAnotherSize::drop. With AtAnotherSize::drop a rescue saves only the value of the
  // rescuing rank, and the other ranks keep the value that the program sets.
  template <Snapshotable T>
  void add_per_rank(std::string_view name, T& value, AtAnotherSize at_another_size = AtAnotherSize::refuse) {
    add_per_rank(name, value_item(pointer_to(value)), at_another_size);
  }
  // Adds the position that `source`, a loader or a sampler, has in the data. `source` outlives this object.
  template <HasPosition T>
  void add(std::string_view name, T& source) {
    add(name, position_item([&source] { return data::SamplerState(source.state()); },
                            [&source](const data::SamplerState& state) { source.resume(state); }));
  }
  void add(std::string_view name, EarlyStop& stop);

  // Restores the newest complete snapshot that any rank can read; the rank that can read the snapshot sends it to all
  // ranks. The call of restore() is collective; a program calls restore() once, after all items are added. The ranks
  // need no shared disk, and the run that saved the snapshot may have had another number of ranks. If there is no
  // snapshot, restore() makes the folder and returns nullopt. Incomplete and damaged snapshots are logged and skipped.
  //
  // If restore() throws on one rank, restore() throws on every rank. Throws Mismatch if ranks have added different
  // items. Throws InvalidArgument, which lists the differences, if the snapshot does not fit the program. Throws
  // InvalidArgument if another job uses the folder, or if the disk has no room for one snapshot. A restore() that
  // throws InvalidArgument has changed nothing. Throws PeerLost and the other errors of the group if the group fails.
  std::optional<RestoredSnapshot> restore();
  // Ends a step of training. Every rank must call step() after the optimizers have updated the parameters, and after
  // the program has updated all other items of the snapshot. Every SnapshotOptions::every steps, step() saves a
  // snapshot while training continues. After the step at which all ranks have agreed to stop, step() saves a snapshot
  // before it returns. The snapshot holds the program's state at the time of the call of step(); rank 0 writes the
  // snapshot to its own disk. If the previous snapshot is still being written, step() saves no new snapshot, and logs
  // a message.
  //
  // A step() that saves a snapshot is collective if an item has a separate value on each rank, or is sharded
  // (DdpOptions::shard). If an item is sharded, each rank writes its own shard to its own disk, and rank 0 also writes
  // all other state. If an item is sharded, step() saves no new snapshot while any rank is still writing the previous
  // snapshot. A run with any number of ranks, with or without shards, can resume from a snapshot that was saved
  // with shards.
  //
  // Throws InvalidArgument before restore(). A backward throws InvalidArgument if it adds to gradients that were
  // computed before the last step() or save, because snapshots do not store gradients.
  void step();
  // Saves a snapshot of this step in the background, as step() does every SnapshotOptions::every steps.
  void save_behind(std::string_view reason);
  // Saves a snapshot of this step, and returns when the snapshot is durable. The call is collective.
  void save(std::string_view reason = "save()");
  // Saves a snapshot of this step, as save_behind() does, if rank 0's `value` (a loss, say) is one of the keep_best
  // best values of the snapshots on rank 0's disk. Returns whether `value` is one of the best values. The call of
  // save_if_best() is collective; a program calls it after an evaluation. Of two equal values the value of the earlier
  // step counts as better, and a NaN is never one of the best values. If the step already has a snapshot, the existing
  // snapshot gets the value. Only save_if_best() gives values to snapshots. Throws InvalidArgument if keep_best is 0.
  bool save_if_best(double value);
  // Restores only the model, from the snapshot that has the best value among the snapshots on all ranks' disks. Returns
  // nullopt if no snapshot has a value. The call of load_best_model() is collective; a program calls it after the
  // training. After load_best_model() has restored the model, step() and save() throw InvalidArgument. Throws the
  // errors that restore() throws, but skips a damaged snapshot.
  std::optional<RestoredSnapshot> load_best_model();
  // On rank 0, waits until the snapshot that is being written is durable, or until the failure to write the snapshot is
  // logged. Other ranks return at once. If an item is sharded, wait() and the destructor are collective, because the
  // ranks finish their files together. Throws PeerLost and the other errors of the group.
  void wait();

 protected:
  // Steps holds those functions of a DistributedDataParallel that a BasicSnapshots calls.
  struct Steps {
    std::function<std::int64_t()> count;
    std::function<void(std::int64_t)> set;
    // Makes each synchronised backward run an action when the backward ends, before the program's optimizers write
    // the parameters.
    std::function<void(std::function<void()>)> before_update;
    // Makes the next backward that adds to earlier gradients run an action when the backward begins.
    std::function<void(std::function<void()>)> before_accumulate;
    // Returns, without waiting, whether the device has finished the work that the last synchronised backward started.
    std::function<bool()> is_over;
    // Makes each forward run an action after the buffers that rank 0 broadcasts have arrived. Null if modules have
    // no buffers.
    std::function<void(std::function<void()>)> after_broadcast = nullptr;
    // Returns the last step whose state audits have found sound, or nullopt if there are no audits. Null if the engine
    // has no audits.
    std::function<std::optional<std::int64_t>()> audited = nullptr;
    // Sets what `audited` returned when the snapshot was saved from which the run resumes.
    std::function<void(std::int64_t)> set_audited = nullptr;
    // Makes the engine run an action when an audit has found that states of later steps than the argument may be wrong.
    // Null if the engine has no audits.
    std::function<void(std::function<void(std::int64_t)>)> before_blame = nullptr;
  };
  // Makes snapshots save the number of steps of another DistributedDataParallel as `name`; the module of that
  // DistributedDataParallel must be an item. With follow() a rescue can tell whether a rank died while the followed
  // network's optimizer was writing, or between steps. Subclasses call follow() before restore().
  void follow(std::string_view name, Steps steps);
  BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                 const SnapshotOptions& options);

 private:
  // ValueAccess holds the functions that read and write one value of the program.
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

// Throws InvalidArgument, whose message says that the saved number `name` does not fit into the type of the
// program's variable.
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
