// SPDX-License-Identifier: Apache-2.0
// The snapshots of one job in one folder:
//
//   run7/lock                            held by rank 0 for as long as it runs (series_lock.h)
//   run7/generation-000003.json          the third start of the job (generations.h)
//   run7/step-000000001200-g000003/      a snapshot, whole exactly if there is a manifest.json in it
//   run7/step-000000001234-g000003-r2/   one that rank 2 saved when another had died
//
// Failure: InvalidArgument if the user can mend it, CorruptData if a disk has lost data, SystemError if this process
// can't look or write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep::checkpoint {

enum class SnapshotState : std::uint8_t {
  whole,       // as far as was looked
  partial,     // its files are on several disks, and this one lacks some
  unfinished,  // without a manifest: a crash, or somebody writes it now
  fenced,      // a later generation has not gone on from it
  damaged,     // bytes are lost or changed
  later,       // written by a later lockstep, or whether the job resumed from it only a later one can tell
};

struct FoundSnapshot {
  std::filesystem::path path;
  std::int64_t step = 0;  // by the folder's name, as the generation
  std::int64_t generation = 0;
  SnapshotState state = SnapshotState::whole;
  std::string why_not = {};  // why a run can't resume from it; empty if it is whole
  std::optional<Manifest> manifest = std::nullopt;
  std::uint64_t bytes = 0;                // the size of its files, by the manifest
  std::vector<std::string> missing = {};  // the files that a partial one lacks

  // Whether its manifest is there, no later run fences it, and what this disk has of it is not known to be damaged.
  bool is_saved() const { return state == SnapshotState::whole || state == SnapshotState::partial; }
};

// Newest first. Reads manifests and looks for files and their sizes; verify_snapshot() reads all. Empty if there is no
// such folder. SystemError if this process can't look at one: such a snapshot is not called damaged.
std::vector<FoundSnapshot> list_snapshots(const std::filesystem::path& folder);
// Reads every byte of a whole one, and of a partial one what is there. CorruptData with the file and what is wrong with
// it.
void verify_snapshot(const FoundSnapshot& snapshot);
// The same of one of its files.
void verify_file(const FoundSnapshot& snapshot, const ManifestFile& file);
// Finds the snapshot that the folder `path` itself is, wherever it lies and whatever its name is. No record fences it.
FoundSnapshot find_snapshot(const std::filesystem::path& path);
// find_snapshot() for a whole snapshot. InvalidArgument if there is no manifest in it, it is partial, or a later
// lockstep has written it; CorruptData.
FoundSnapshot open_snapshot(const std::filesystem::path& path);

// The largest number of a generation of which the folder knows, by records and by snapshots; 0: none.
std::int64_t newest_generation(const std::filesystem::path& folder);

// An item with its tensors, whose bytes belong to the caller.
struct ItemSource {
  ManifestItem item;                  // `tensors` is filled in
  std::vector<TensorSource> tensors;  // of a sharded item this rank's slices
};

// Writes step and generation of `head` with `items`, each file durable, the manifest last; the remains of an earlier
// try are removed first. `survivor`: the rank that saves the step of a job in which another has died, to a folder that
// need not know this run. Returns the manifest. On failure nothing of the snapshot stays. InvalidArgument if a later
// generation has begun, or if the record of its own is gone, and with it the folder that this job has locked.
Manifest write_snapshot(const std::filesystem::path& folder, Manifest head, std::span<const ItemSource> items,
                        std::optional<int> survivor = std::nullopt);
// write_snapshot() in pieces, for one that several ranks write. The folder, empty: each disk's first rank makes it.
std::filesystem::path begin_snapshot(const std::filesystem::path& folder, const Manifest& head,
                                     std::optional<int> survivor = std::nullopt);
// The items' files, durable, into that folder; adds files and items to `part`, which is unchanged on failure.
void write_items(const std::filesystem::path& snapshot, Manifest& part, std::span<const ItemSource> items, int rank);
// The manifest, once all of its files are durable. CorruptData as check_references().
void finish_snapshot(const std::filesystem::path& snapshot, const Manifest& manifest,
                     std::optional<int> survivor = std::nullopt);
// After a failure: what was written goes, for on a full disk it would take the next snapshot's space. Throws nothing.
void abandon_snapshot(const std::filesystem::path& snapshot) noexcept;
// "optimizer.r0003.safetensors": rank 3's slices of the item.
std::string name_of_shard(const std::string& item, int rank);
// Writes the value of `snapshot`, a whole one, into its manifest: the old or the new manifest is there, whatever
// happens. SystemError.
void set_value(const FoundSnapshot& snapshot, double value);
// Removes the manifest first, so that the rest after a crash is not a snapshot. A link is removed alone. SystemError.
void remove_snapshot(const std::filesystem::path& snapshot);

// "step-000000001234-g000003", of a survivor "step-000000001234-g000003-r2".
std::string name_of_snapshot(std::int64_t step, std::int64_t generation, std::optional<std::int64_t> survivor = {});
struct SnapshotNumbers {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::optional<std::int64_t> survivor = std::nullopt;
};
// The numbers in `name`; nullopt if it is not the name of a snapshot followed by `end`.
std::optional<SnapshotNumbers> numbers_of(std::string_view name, std::string_view end = "");

}  // namespace lockstep::checkpoint
