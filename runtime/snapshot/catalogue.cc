// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/catalogue.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/ddp/on_rank0.h"
#include "runtime/base/logging.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/storage.h"
#include "runtime/snapshot/agree.h"

namespace lockstep {
namespace {

bool is_full(const SystemError& error) { return error.error_number() == ENOSPC || error.error_number() == EDQUOT; }

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) {
    throw checkpoint::file_error("snapshots: looking for room in", folder, "statvfs", errno);
  }
  // A file system that reports no size may have any amount of free space.
  if (disk.f_blocks == 0) return std::numeric_limits<std::uint64_t>::max();
  return static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
}

}  // namespace

std::string Catalogue::who() const { return group_.roster()[static_cast<std::size_t>(group_.rank())].describe(); }

checkpoint::Manifest Catalogue::head(std::int64_t step, std::string_view reason) const {
  return {.step = step,
          .generation = generation_,
          .world_size = group_.size(),
          .time = checkpoint::utc_now(),
          .writer = who(),
          .reason = std::string(reason),
          .audited = sound_ == kNone ? std::nullopt : std::optional<std::int64_t>(sound_)};
}

std::filesystem::path Catalogue::path_of(std::int64_t step) const {
  return folder_ / checkpoint::name_of_snapshot(step, generation_);
}

void Catalogue::lock() { lock_ = std::make_unique<checkpoint::SeriesLock>(folder_, who()); }

void Catalogue::check_room(std::uint64_t bytes, bool is_resumed) {
  std::uint64_t free = free_bytes(folder_);
  // clean() keeps the snapshot from which the job resumes. clean() also keeps newer snapshots that look complete on
  // this disk, although the job could not read all of their files.
  for (int keep = options_.keep; is_resumed && keep > 0 && free < bytes; --keep) {
    clean(keep, kNone);
    free = free_bytes(folder_);
  }
  if (free < bytes) {
    throw InvalidArgument(fmt::format(
        "snapshots: the disk of '{}' has {} free, and one snapshot takes {}; make room, or give another folder",
        folder_.string(), readable_bytes(free), readable_bytes(bytes)));
  }
  const auto most = static_cast<std::uint64_t>(options_.keep) + 1;
  if (free / most < bytes) {
    log_warn(
        "snapshots: the disk of '{}' has {} free, and the {} snapshots to keep and one that is being written take {}; "
        "make room, or lower SnapshotOptions::keep",
        folder_.string(), readable_bytes(free), options_.keep, readable_bytes(bytes * most));
  }
}

void Catalogue::begin(std::optional<std::int64_t> from_step, bool all_write) {
  all_write_ = all_write;
  std::int64_t newest = checkpoint::newest_generation(folder_);
  for (const std::int64_t of_rank : all_gather_value(newest, group_)) newest = std::max(newest, of_rank);
  generation_ = newest + 1;
  unrecorded_ = {.number = generation_,
                 .from_step = from_step,
                 .writer = group_.roster().front().describe(),
                 .time = broadcast_value(std::string_view(checkpoint::utc_now()), group_)};
  // Rank 0 records this start of the job before the other ranks, so that rank 0 manages the folder on a disk that
  // several ranks share. If the job crashes after the record is written, the next start still resumes from the same
  // snapshot.
  on_rank0(
      "Snapshots::restore",
      [&] {
        with_room([&] { record_start(); });
        return std::string();
      },
      group_);
  // On rank 0, `record` does nothing, because rank 0 has already recorded this start of the job.
  const auto record = [&] {
    try {
      if (!all_write) return record_start();
      with_room([&] { record_start(); });
    } catch (const Error& error) {
      const auto* const system = dynamic_cast<const SystemError*>(&error);
      if (all_write && (system == nullptr || !is_full(*system))) throw;
      log_warn(
          "snapshots: this run could not be recorded in the folder of {}{}: {}; see that the folder can be written",
          who(), all_write ? ", and no step is saved until its disk has room" : "", error.what());
    }
  };
  std::error_code ignored;
  if (all_write) {
    agree_on(group_, "Snapshots::restore", record);
  } else if (std::filesystem::is_directory(folder_, ignored)) {
    record();  // an earlier run may still write to another host's disk
  }
  if (group_.rank() == 0 || !keeps_disk_) return;
  try {
    // Rank 0's lock is on another disk. The lock `only` keeps the ranks of another job from cleaning the folder
    // during clean_rescues().
    const checkpoint::SeriesLock only(folder_, who());
    checkpoint::clean_rescues(folder_, generation_, from_step);
  } catch (const Error& error) {
    log_warn(
        "snapshots: files of earlier runs on this host could not be removed: {}; see that this user may remove them",
        error.what());
  }
}

void Catalogue::record_start() {
  if (!unrecorded_) return;
  if (all_write_) checkpoint::make_folders(folder_);
  // record_generation() returns false if rank 0, or another rank of this host, has already recorded the start on
  // the disk.
  keeps_disk_ = checkpoint::record_generation(folder_, *unrecorded_);
  // Clear resumes_from_ only after the start is recorded, because until then clean() keeps the snapshot that
  // resumes_from_ names.
  unrecorded_.reset();
  resumes_from_.clear();
}

std::optional<checkpoint::FoundSnapshot> Catalogue::find(std::int64_t step) const {
  for (checkpoint::FoundSnapshot& found : checkpoint::list_snapshots(folder_)) {
    if (found.step == step && found.generation == generation_ && found.is_saved()) return std::move(found);
  }
  return std::nullopt;
}

bool Catalogue::is_among_best(std::int64_t step, double value) const {
  return checkpoint::is_among_best(checkpoint::list_snapshots(folder_), step, value, retention());
}

checkpoint::Retention Catalogue::retention() const {
  return {.keep = options_.keep,
          .keep_every = options_.keep_every,
          .keep_best = options_.keep_best,
          .higher_is_better = options_.higher_is_better,
          .saved_elsewhere = saved_elsewhere_,
          .resumes_from = resumes_from_,
          .sound = sound_};
}

void Catalogue::forget_after(std::int64_t step) {
  if (group_.rank() != 0 && !keeps_disk_) return;
  for (const checkpoint::FoundSnapshot& found : checkpoint::list_snapshots(folder_)) {
    if (!found.is_saved() || found.step <= step) continue;
    checkpoint::remove_snapshot(found.path);
    log_warn("snapshots: '{}' is removed, because an audit has found that it may be wrong", found.path.string());
  }
}

void Catalogue::with_room(const std::function<void()>& write, std::int64_t being_written) {
  for (int keep = options_.keep;; --keep) {
    try {
      return write();
    } catch (const SystemError& error) {
      if (!is_full(error) || keep == 0) throw;
    }
    // Each round keeps one snapshot fewer than the last round, so that no more snapshots are removed than necessary.
    clean(keep, being_written);
  }
}

void Catalogue::clean(int keep, std::int64_t being_written) {
  try {
    if (keep < options_.keep)
      log_warn(
          "snapshots: the disk of '{}' is full, so only {} of the {} wanted snapshots are kept; make room on the disk",
          folder_.string(), keep, options_.keep);
    checkpoint::Retention now = retention();
    now.keep = keep;
    now.being_written = being_written;
    if (keep == 0) now.sound = kNone;  // the disk has no room for it
    checkpoint::clean(folder_, now);
  } catch (const Error& error) {
    log_warn("snapshots: older snapshots could not be removed: {}; see that this user may remove them", error.what());
  }
}

}  // namespace lockstep
