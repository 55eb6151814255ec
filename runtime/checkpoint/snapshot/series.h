// SPDX-License-Identifier: Apache-2.0
// The snapshots of one job in one folder:
//
//   run7/lock                            held by rank 0 for as long as it runs
//   run7/generation-000003.json          the third start of the job: who, and from which step it went on
//   run7/step-000000001200-g000003/      a snapshot, whole exactly if there is a manifest.json in it
//   run7/step-000000001234-g000003-r2/   one that rank 2 saved when another had died
//
// A generation fences those before it: what they write of later steps than the one it went on from is no part of the
// job any more, and is never read. A start that goes on from nothing fences all of it.
//
// Failure: InvalidArgument for what the user can mend, CorruptData for what a disk has lost, SystemError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep::checkpoint {

// "2026-11-23T03:00:00Z": now.
std::string utc_now();

// One start of a job.
struct Generation {
  std::int64_t number = 0;                               // from 1
  std::optional<std::int64_t> from_step = std::nullopt;  // nothing: a fresh start
  std::string writer = {};                               // "rank 0 (host node7, pid 4711)"
  std::string time = {};
};

// Those recorded in the folder, in order; one that can't be read counts as a fresh start. Empty if there is no folder.
LOCKSTEP_INTERNAL_API std::vector<Generation> list_generations(const std::filesystem::path& folder);
// Durable once this returns. InvalidArgument if another process has recorded that number meanwhile, with its name.
LOCKSTEP_INTERNAL_API void record_generation(const std::filesystem::path& folder, const Generation& generation);

struct FoundSnapshot {
  std::filesystem::path path;
  std::int64_t step = 0;  // by the folder's name, as the generation
  std::int64_t generation = 0;
  std::optional<Manifest> manifest = std::nullopt;
  std::uint64_t bytes = 0;   // of its files, by the manifest
  std::string why_not = {};  // why it can't be read; empty: no reason is known yet
};

// Newest first. Reads manifests and looks for files and their sizes; verify_snapshot() reads all. Empty if there is no
// such folder.
LOCKSTEP_INTERNAL_API std::vector<FoundSnapshot> list_snapshots(const std::filesystem::path& folder);
// Reads every byte. CorruptData with the file and what is wrong with it.
LOCKSTEP_INTERNAL_API void verify_snapshot(const FoundSnapshot& snapshot);

// An item with its tensors, whose bytes belong to the caller.
struct ItemSource {
  ManifestItem item;  // `tensors` is filled in
  std::vector<TensorSource> tensors;
};

// Writes step and generation of `head` with `items`, each file durable, the manifest last; what lay there of an earlier
// try goes first. `survivor`: the rank that writes what nobody else may. Returns the manifest. InvalidArgument, with
// nothing of it there, if a later generation has begun.
LOCKSTEP_INTERNAL_API Manifest write_snapshot(const std::filesystem::path& folder, Manifest head,
                                              std::span<const ItemSource> items,
                                              std::optional<int> survivor = std::nullopt);
// Of the processes that call it with these numbers and one folder, true for the first alone.
LOCKSTEP_INTERNAL_API bool claim_rescue(const std::filesystem::path& folder, std::int64_t step,
                                        std::int64_t generation);

struct Retention {
  int keep = 3;                 // the newest
  std::int64_t keep_every = 0;  // and those whose step is a multiple; 0: no more
};
// Removes what `retention` does not keep, what no manifest was written for, and what is fenced. Only the holder of the
// lock, and not while a snapshot is being written.
LOCKSTEP_INTERNAL_API void clean(const std::filesystem::path& folder, const Retention& retention);

// Rank 0's, for as long as the job runs: two jobs in one folder would take each other's snapshots away.
class LOCKSTEP_INTERNAL_API SeriesLock {
 public:
  // Makes the folder. InvalidArgument with the holder's name and since when, if another process has it. A file system
  // without locks is said in the log: then generations alone keep jobs apart.
  SeriesLock(const std::filesystem::path& folder, const std::string& who);

 private:
  UniqueFd fd_;
};

}  // namespace lockstep::checkpoint
