// SPDX-License-Identifier: Apache-2.0
// Catalogue manages the job's snapshot folder on this rank's disk. A Catalogue knows the snapshots in the folder and
// the generation (the number of this start of the job), and decides which snapshots stay.
//
// On each disk, one rank makes and removes the snapshots' folders: we say that this rank keeps the disk. Rank 0 keeps
// its own disk. Every other disk is kept by the first rank that records this start of the job on the disk.
//
// Threads: begin(), record_start() and check_room() run on the training's thread, while the writer's thread is idle.
//   From begin() on, with_room(), clean() and note_saved_elsewhere() run on the writer's thread, or on the training's
//   thread while the writer's thread is idle.
// Failure: the functions of Catalogue throw SystemError if this process can't read or write the disk; begin() also
//   throws the group's errors.
#pragma once

#include <atomic>
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
  // Returns the generation, which is the number of this start of the job. The generation is 0 before begin().
  std::int64_t generation() const { return generation_; }
  // Returns a text for messages that describes this rank.
  std::string who() const;
  // Returns a manifest without files and items for this run's snapshot of `step`.
  checkpoint::Manifest head(std::int64_t step, std::string_view reason) const;
  // Returns the folder of this run's snapshot of `step`.
  std::filesystem::path path_of(std::int64_t step) const;

  // Locks the folder for the lifetime of this object. Throws InvalidArgument if another job has locked the folder. Only
  // rank 0 calls lock().
  void lock();
  // Throws InvalidArgument if the disk lacks space for one snapshot of `bytes` bytes. If the job resumes from a
  // snapshot, check_room() first removes older snapshots to make room. Only rank 0 calls check_room().
  void check_room(std::uint64_t bytes, bool is_resumed);
  // Collective. Begins a new generation of the job, which resumes from `from_step`, or from no snapshot if `from_step`
  // is nullopt. If `all_write` is true, every rank writes to its own disk; otherwise only rank 0 writes.
  void begin(std::optional<std::int64_t> from_step, bool all_write);
  // Records this start of the job on this rank's disk, unless the disk already has the record. Before each sharded
  // snapshot, open_sharded() calls record_start() again, because the disk may have been too full for the record in
  // begin().
  void record_start();
  bool keeps_disk() const { return keeps_disk_; }
  bool all_write() const { return all_write_; }

  // Returns this run's saved snapshot of `step`, or nullopt if `step` is not saved.
  std::optional<checkpoint::FoundSnapshot> find(std::int64_t step) const;
  // Returns whether a snapshot of `step` with `value` would be one of the best snapshots that
  // SnapshotOptions::keep_best keeps.
  bool is_among_best(std::int64_t step, double value) const;

  // Sets the name of the snapshot from which the job resumes. Until this start of the job is recorded on this disk,
  // clean() keeps the named snapshot, and the newer snapshots that look complete on this disk.
  void set_resumes_from(std::string name) { resumes_from_ = std::move(name); }
  // Records that another disk has the manifest of the snapshot of `step` and `generation`. After
  // note_saved_elsewhere(), the snapshot's files on this disk count as parts of a saved snapshot, although this disk
  // has no manifest.
  void note_saved_elsewhere(std::int64_t step, std::int64_t generation) { saved_elsewhere_.emplace(step, generation); }
  // Removes the snapshots on this disk that neither keep, keep_every nor keep_best of SnapshotOptions protects. Logs a
  // failure to remove snapshots.
  void clean() { clean(options_.keep, kNone); }
  // Makes clean() keep the newest snapshot that is not newer than `step`, because audits have found it sound. Any
  // thread may call keep_sound().
  void keep_sound(std::int64_t step) { sound_ = step; }
  // Removes the snapshots of steps after `step` from this disk, and logs their names.
  void forget_after(std::int64_t step);
  // Calls `write`. If `write` finds the disk full, with_room() removes older snapshots and calls `write` again, as
  // often as necessary. The newest snapshot stays. The function with_room() does not remove the folder of the step
  // `being_written`, because other ranks may be writing to the folder.
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
  std::atomic<std::int64_t> sound_ = kNone;
  std::set<std::pair<std::int64_t, std::int64_t>> saved_elsewhere_;
};

}  // namespace lockstep
