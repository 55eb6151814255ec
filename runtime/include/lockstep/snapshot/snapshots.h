// SPDX-License-Identifier: Apache-2.0
// Snapshots of a whole job: what both engines' share. Programs use lockstep::Snapshots (train/snapshots.h) or
// lockstep::libtorch::Snapshots (libtorch/snapshots.h).
//
//   lockstep::Snapshots snapshots("run7", ddp, {.every = 500});
//   snapshots.add("optimizer", optimizer);
//   snapshots.add("data", loader);
//   snapshots.add("best", best_loss);                 // the program's own
//   snapshots.restore();                              // the newest, or a fresh start, which a line says
//   for (std::int64_t epoch = loader.epoch(); epoch < 10; ++epoch) {
//     loader.set_epoch(epoch);                        // keeps the place in its epoch
//     for (const auto& [x, y, ids] : lockstep::progress(loader, ddp)) {
//       ...
//       optimizer.step();
//       snapshots.step();                             // last in the loop
//     }
//     if (ddp.should_stop()) break;                   // all ranks, after one step, which is saved
//   }
//   return ddp.exit_code();                           // 75 after a signal: there is more to do
//
// A snapshot is a folder, run7/step-..., whole or not there: safetensors files and a manifest, described in
// docs/SNAPSHOTS.md. The state at step() is saved, and nothing of a later one. A thread writes it while training
// continues: memory that only optimizers write is copied behind the next forward and backward, which do not end before
// the copy; all else within step(). Rank 0 writes, to its own disk; it holds one more copy of the state in memory.
//
// An optimizer whose state is in shares (DdpOptions::shard) is saved by all ranks: each writes its share, in its own
// thread, to its own disk, and rank 0 the rest, and the manifest once all have told it that theirs is durable. Any
// number of ranks resumes from it, with shards or without. step() is collective where such a snapshot is due, and all
// ranks need a folder that they can write; disks may be shared or not.
//
// restore() needs no shared disk: ranks tell each other what they can read, the newest whole snapshot wins, and a rank
// that has it gives it to all, at any number of ranks. One that is torn or damaged is passed over, and the log says
// why. A folder belongs to one job: a second is refused by name of the first, and a run that others have taken over
// from saves no more (see docs/SNAPSHOTS.md, "Generations").
//
// A rank that dies costs no finished step: of the others, which end with PeerLost, one saves the state of the last
// step() from its own memory, to its own disk, before its process ends or while the exception unwinds this object.
// State that a forward changes in place (running statistics) is copied in each step() for that. It has this rank's own
// values alone where each rank has its own; the others' stay what the program gives them. With an optimizer in shares
// the job resumes from the last saved step: the lost rank's share is nobody else's.
//
// Threads: that of training. Collective: restore(), save(), and a step() that saves values or shares of each rank.
// Failure: restore() throws on every rank alike. A snapshot in the background that can't be written (the disk is full)
//   costs a line in the log, and training continues; save() throws, as on_rank0() does.
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

// What belongs to a program's state, one thing by name: how a snapshot gets it, and gives it back.
//
// For who adds a kind of thing of their own; the model, optimizers, loaders and values have theirs.

// Elements [begin, end) of a tensor, in the order of its memory.
struct SnapshotShare {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A tensor of an item, as it is at the end of a step.
struct SnapshotTensor {
  std::string name;  // in the item's file
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // in a file that has it whole
  // Row-major, on the host. Without `is_copy` this is where the program computes: it is copied at once, or, if only
  // optimizers write it, behind the step, before the next backward ends.
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = nullptr;  // of the bytes, kept until they are copied
  bool is_copy = false;
  bool only_optimizers_write = false;
  // A matrix, [columns, rows] in memory: the file has it transposed. A share stays in the order of memory.
  bool is_transposed = false;
  // In a sharded item the elements that `bytes` has, perhaps none; the shares of all ranks make up the tensor. Without
  // it each rank has the tensor whole.
  std::optional<SnapshotShare> share = std::nullopt;
  // Changes with every write. Null: writes can't be told.
  std::function<std::uint64_t()> version = nullptr;
  // Further names of a tied tensor. A file has its bytes under each name; to restore it any of them will do, and those
  // that a snapshot has must have the same bits. None in a sharded item.
  std::vector<std::string> other_names = {};

  std::vector<std::string> names() const {
    std::vector<std::string> all{name};
    all.insert(all.end(), other_names.begin(), other_names.end());
    return all;
  }
};

// What restore() may pass over. Items that the program has not added are said in the log.
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
  // Whether each rank has a share of some tensors: tensors() then lists the same ones on every rank. read() gives whole
  // tensors as ever. The same on all ranks, for as long as this lives.
  virtual bool is_sharded() const { return false; }
  // InvalidArgument that lists what is missing, unexpected or different, unless `options` allow it.
  virtual void check(const SavedItem& saved, const RestoreOptions& options) const = 0;
  virtual void load(SavedItem& saved) = 0;
};

// For check(): that `saved` has exactly the tensors `wanted`, by name, shape and dtype.
LOCKSTEP_API void check_tensors(const SavedItem& saved, std::span<const SnapshotTensor> wanted,
                                const RestoreOptions& options);
// For check(): that there are no `missing` names, which only the program has, or `unexpected` ones, which only the
// snapshot has, that `options` don't allow, and no texts of what is `different`.
LOCKSTEP_API void check_names(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                              const std::vector<std::string>& different, const RestoreOptions& options);
// For load(): the first of a tensor's names that `saved` has; nullopt if it has none.
LOCKSTEP_API std::optional<std::string> name_in(const SavedItem& saved, std::span<const std::string> names);

// Equal on all ranks.
struct SnapshotOptions {
  std::int64_t every = 0;         // steps; 0: save() alone
  int keep = 3;                   // the newest; at least 1. An older one goes once a newer is durable
  std::int64_t keep_every = 0;    // and those whose step is a multiple; 0: no more
  int keep_best = 0;              // and those of the best values that save_if_best() was given; 0: no more
  bool higher_is_better = false;  // of these values
  // When a rank has died, and with any other error that ends the run, one of the others saves the last step that was
  // finished: its replica is whole.
  bool rescue = true;
  // restore() calls lockstep::stop_on_signals() (comm/stop.h): SIGTERM, SIGINT and SIGUSR1 of any rank ask for an end
  // after the same step on all, whose step() saves; in an evaluation, the end of this object does. Under `lockstep run`
  // it also gives a rescue the time that it takes.
  bool stop_on_signals = true;
  RestoreOptions restore = {};
};

using checkpoint::AtAnotherSize;

// Where a run resumed.
struct RestoredSnapshot {
  std::int64_t step = 0;
  std::filesystem::path path;  // on the disk of `rank`
  int rank = 0;
  int world_size = 0;                          // of the run that wrote it
  std::optional<double> value = std::nullopt;  // given to save_if_best()
};

template <typename T>
concept SnapshotScalar = std::integral<T> || std::floating_point<T>;

// An object of the program's own that a snapshot can keep.
template <typename T>
concept Snapshotable =
    SnapshotScalar<T> || std::same_as<T, std::string> || std::same_as<T, std::vector<std::int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, std::vector<std::string>>;

// A loader or a sampler.
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

  // The added object outlives this one, and has a name of its own: letters, digits, '_', '-' and '.'; "model" is the
  // model. Before restore(); the same on all ranks. InvalidArgument otherwise.
  void add(std::string_view name, std::shared_ptr<SnapshotItem> item);
  // A value of the program's own, the same on all ranks: rank 0's is kept.
  template <Snapshotable T>
  void add(std::string_view name, T& value) {
    add(name, value_item(pointer_to(value)));
  }
  // One that each rank has its own of. Unless it may be dropped, a dead rank costs the steps since the last save:
  // nobody else has its value.
  template <Snapshotable T>
  void add_per_rank(std::string_view name, T& value, AtAnotherSize at_another_size = AtAnotherSize::refuse) {
    add_per_rank(name, value_item(pointer_to(value)), at_another_size);
  }
  // The place in the data.
  template <HasPosition T>
  void add(std::string_view name, T& source) {
    add(name, position_item([&source] { return data::SamplerState(source.state()); },
                            [&source](const data::SamplerState& state) { source.resume(state); }));
  }
  void add(std::string_view name, EarlyStop& stop);

  // Once, when all is added. Nothing if there is no snapshot: a fresh start, which needs no folder: it is made.
  // Mismatch where ranks have added different items; InvalidArgument, with nothing changed, for one that does not fit
  // the program, naming what differs; for a folder that another job uses; with too little room on the disk for one
  // snapshot. PeerLost and the like from the group.
  std::optional<RestoredSnapshot> restore();
  // At the end of each step of training, once parameters and whatever belongs to them are written. Saves in every
  // SnapshotOptions::every-th, and, before it returns, the one in which all ranks have agreed to stop; if the one
  // before is still being written it is left out, with a line. Collective in a step that is due, if an item is sharded:
  // all ranks leave it out if one of them still writes. InvalidArgument before restore(). Gradients are in no
  // snapshot: a backward that adds to those of before step(), or of before a save, throws InvalidArgument.
  void step();
  // Saves this step, as step() does where one is due.
  void save_behind(std::string_view reason);
  // Collective: saves now, and returns once it is durable.
  void save(std::string_view reason = "save()");
  // Collective, after an evaluation: saves this step, as save_behind() does, if rank 0's `value` (of a loss, say) is
  // one of the SnapshotOptions::keep_best best among the snapshots on rank 0's disk; returns whether it is. The earlier
  // step of two equal values is better, and a NaN is never among them. A snapshot that this step has already is kept
  // for its value; those that were saved otherwise have none. InvalidArgument if keep_best is 0.
  bool save_if_best(double value);
  // Collective, for what comes after the training: the model, and nothing else, as it was in the snapshot of the best
  // value that any rank has; nothing if none has one. Then nothing more is saved: step() and save() throw
  // InvalidArgument. Failure: as restore(), but that a damaged one is passed over.
  std::optional<RestoredSnapshot> load_best_model();
  // Until what is being written is durable, or has failed, as the log says. Rank 0's alone takes time. Collective if an
  // item is sharded, as is the destructor: each rank's share ends with those of the others. PeerLost and the like from
  // the group.
  void wait();

 protected:
  // The steps of ddp.
  struct Steps {
    std::function<std::int64_t()> count;
    std::function<void(std::int64_t)> set;
    // Runs it from now on at the end of each synchronised backward, before the program's optimizers write.
    std::function<void(std::function<void()>)> before_update;
    // Runs it in the next backward, first, if that adds to gradients that were there before.
    std::function<void(std::function<void()>)> before_adding;
    // Whether what the last synchronised backward has started on a device is over there, never waiting.
    std::function<bool()> is_over;
    // Runs it from now on in each forward that has begun with rank 0's buffers. Null where modules have none.
    std::function<void(std::function<void()>)> after_broadcast = nullptr;
  };
  // Another DistributedDataParallel whose module is one of the items: its steps are kept, as `name`, and a death while
  // its optimizer writes is told from one between steps. Before restore().
  void follow(std::string_view name, Steps steps);
  BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                 const SnapshotOptions& options);

 private:
  // A pointer to what it keeps, as a snapshot has it.
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

// InvalidArgument: it does not fit the program's type.
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
