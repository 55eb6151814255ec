// SPDX-License-Identifier: Apache-2.0
// Catalogue has the job's folder on this rank's disk. It knows the folder's snapshots and the number of this start of
// the job, and decides which snapshots stay.
//
// A rank that keeps a disk makes and removes folders on the disk. Rank 0 keeps its own disk. The first rank that
// records the generation on another disk with the folder keeps this disk.
//
// Threads: begin(), record_start() and check_room() run on the training's thread, while the writer's thread is idle.
//   From begin() on, with_room(), clean() and note_saved_elsewhere() run on the writer's thread, or on the training's
//   thread while the writer's thread is idle.
// Failure: throws SystemError if this process can't read or write the disk; begin() also throws the group's errors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/retention.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/snapshot/series_lock.h"

namespace lockstep {

class Catalogue {
 public:
  // `group` must outlive this object.
  Catalogue(std::filesystem::path folder, ProcessGroup& group, const SnapshotOptions& options)
      : folder_(std::move(folder)), group_(group), options_(options) {}

  const std::filesystem::path& folder() const { return folder_; }
  // Returns the number of this start of the job, which begin() sets.
  std::int64_t generation() const { return generation_; }
  // Returns a description of this rank for messages.
  std::string who() const;
  // Returns a manifest of this run, without files and items.
  checkpoint::Manifest head(std::int64_t step, std::string_view reason) const;
  // Returns the folder of this run's snapshot of `step`.
  std::filesystem::path path_of(std::int64_t step) const;

  // Locks the folder for the lifetime of this object. Throws InvalidArgument if another job has the folder. Only rank 0
  // calls lock().
  void lock();
  // Throws InvalidArgument if the disk lacks space for one snapshot of `bytes`. If the job resumes from a snapshot,
  // check_room() first removes older snapshots to make room. Only rank 0 calls check_room().
  void check_room(std::uint64_t bytes, bool is_resumed);
  // Collective. Begins this start of the job, which resumes from `from_step`. With `all_write`, every rank writes to
  // its own disk; otherwise only rank 0 writes.
  void begin(std::optional<std::int64_t> from_step, bool all_write);
  // Records this start on this rank's disk, unless the disk has the record: a full disk may have refused the record
  // in begin().
  void record_start();
  bool keeps_disk() const { return keeps_disk_; }
  bool all_write() const { return all_write_; }

  // Returns this run's saved snapshot of `step`, or nullopt if there is none.
  std::optional<checkpoint::FoundSnapshot> find(std::int64_t step) const;
  // Returns whether a snapshot of `step` with `value` would be one of the best.
  bool is_among_best(std::int64_t step, double value) const;

  // Sets the name of the snapshot from which the job resumes. Until this start is recorded on this disk, cleaning keeps
  // the named snapshot and the newer snapshots, which were passed over.
  void set_resumes_from(std::string name) { resumes_from_ = std::move(name); }
  // Notes that a snapshot's manifest lies on another disk: the snapshot's files on this disk, without a manifest, are
  // part of the snapshot.
  void note_saved_elsewhere(std::int64_t step, std::int64_t generation) { saved_elsewhere_.emplace(step, generation); }
  // Removes the snapshots that the options don't keep. Logs a failure to remove snapshots.
  void clean() { clean(options_.keep, kNone); }
  // Calls `write`. On a full disk, removes older snapshots, except the newest, and calls `write` again. `being_written`
  // is the step whose folder other ranks write to now; this folder stays.
  void with_room(const std::function<void()>& write, std::int64_t being_written = kNone);

 private:
  static constexpr std::int64_t kNone = -1;

  void clean(int keep, std::int64_t being_written);
  checkpoint::Retention retention() const;

  const std::filesystem::path folder_;
  ProcessGroup& group_;
  const SnapshotOptions options_;
  std::unique_ptr<checkpoint::SeriesLock> lock_;  // the lock of rank 0
  std::int64_t generation_ = 0;
  bool all_write_ = false;
  bool keeps_disk_ = false;
  std::optional<checkpoint::Generation> unrecorded_;  // the record of this start, until this disk has the record
  std::string resumes_from_;
  std::set<std::pair<std::int64_t, std::int64_t>> saved_elsewhere_;
};

}  // namespace lockstep
