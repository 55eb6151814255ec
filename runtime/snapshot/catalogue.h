// SPDX-License-Identifier: Apache-2.0
// The job's folder on this rank's disk: its snapshots, the number of this start of the job, and which snapshots stay.
//
// Rank 0 keeps its own disk: it makes and removes folders there. On another disk that has the folder, the first rank
// that records the generation keeps it.
//
// Threads: begin(), record_start() and check_room() run on the training's thread, while the writer's thread is idle.
//   From begin() on, with_room(), clean() and note_saved_elsewhere() run on the writer's thread, or on the training's
//   while that thread is idle.
// Failure: SystemError if this process can't read or write the disk; begin() also throws the group's errors.
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
  // `group` outlives this object.
  Catalogue(std::filesystem::path folder, ProcessGroup& group, const SnapshotOptions& options)
      : folder_(std::move(folder)), group_(group), options_(options) {}

  const std::filesystem::path& folder() const { return folder_; }
  // The number of this start of the job, set by begin().
  std::int64_t generation() const { return generation_; }
  // This rank, for messages.
  std::string who() const;
  // A manifest of this run, without files and items.
  checkpoint::Manifest head(std::int64_t step, std::string_view reason) const;
  // The folder of this run's snapshot of `step`.
  std::filesystem::path path_of(std::int64_t step) const;

  // Locks the folder for the lifetime of this object; on rank 0. InvalidArgument if another job has the folder.
  void lock();
  // Checks the disk, on rank 0: InvalidArgument if it lacks space for one snapshot of `bytes`. If the job resumes from
  // a snapshot, it first removes older ones to make room.
  void check_room(std::uint64_t bytes, bool is_resumed);
  // Collective. Begins this start of the job, which resumes from `from_step`. `all_write`: every rank writes to its own
  // disk, not only rank 0.
  void begin(std::optional<std::int64_t> from_step, bool all_write);
  // Records this start on this rank's disk, unless it is recorded there: a full disk may have refused the record in
  // begin().
  void record_start();
  bool keeps_disk() const { return keeps_disk_; }
  bool all_write() const { return all_write_; }

  // This run's snapshot of `step`.
  std::optional<checkpoint::FoundSnapshot> find(std::int64_t step) const;
  // Whether a snapshot of that step would be one of the best.
  bool is_among_best(std::int64_t step, double value) const;

  // Sets the name of the snapshot from which the job resumes. Until this start is recorded on this disk, cleaning keeps
  // that snapshot and the newer ones, which were passed over.
  void set_resumes_from(std::string name) { resumes_from_ = std::move(name); }
  // Notes that the manifest of that snapshot lies on another disk: files here without a manifest are part of it.
  void note_saved_elsewhere(std::int64_t step, std::int64_t generation) { saved_elsewhere_.emplace(step, generation); }
  // Removes the snapshots that the options don't keep; logs what it can't remove.
  void clean() { clean(options_.keep, kNone); }
  // Calls `write`. On a full disk it removes older snapshots, except the newest, and calls it again. `being_written` is
  // the step whose folder other ranks write to now, which stays.
  void with_room(const std::function<void()>& write, std::int64_t being_written = kNone);

 private:
  static constexpr std::int64_t kNone = -1;

  void clean(int keep, std::int64_t being_written);
  checkpoint::Retention retention() const;

  const std::filesystem::path folder_;
  ProcessGroup& group_;
  const SnapshotOptions options_;
  std::unique_ptr<checkpoint::SeriesLock> lock_;  // rank 0's lock
  std::int64_t generation_ = 0;
  bool all_write_ = false;
  bool keeps_disk_ = false;
  std::optional<checkpoint::Generation> unrecorded_;  // this start, until this disk has its record
  std::string resumes_from_;
  std::set<std::pair<std::int64_t, std::int64_t>> saved_elsewhere_;
};

}  // namespace lockstep
