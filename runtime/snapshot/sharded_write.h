// SPDX-License-Identifier: Apache-2.0
// The functions in this file write one snapshot together on all ranks. Each rank writes its slices to its own disk, and
// rank 0 writes the manifest after all files are durable. The ranks communicate through the group's store, because only
// the training's thread may start collectives.
//
// The store has up to two keys for each rank and snapshot. Each rank but rank 0 sets its key "written" to its part of
// the manifest or to its failure, and rank 0 reads the key. For each rank that makes and removes the folders on a disk
// (catalogue.h), rank 0 sets the key "manifest" to the whole manifest, or to an empty text after a failure. The rank
// that reads a key erases the key.
//
// Threads: write_sharded() runs on the writer's thread; the other functions run on the training's thread.
// Failure: open_sharded() returns a text, equal on every rank, that says why it failed, and throws the group's errors.
//   If the snapshot is not durable, write_sharded() throws the reason on rank 0. After a failure, the ranks remove the
//   snapshot's files. A rank that gets no answer from rank 0 leaves its files on the disk.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "lockstep/comm/process_group.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/snapshot/catalogue.h"

namespace lockstep {

inline constexpr const char* kBusy = "busy";

// Collective. Makes the snapshot's folder on each disk, and returns an empty text on success. If the step can't be
// saved now, removes the folder and returns the reason, which is equal on every rank. The returned reason is kBusy if a
// rank still writes an earlier step. `is_busy` says whether this rank still writes an earlier step.
std::string open_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head, bool is_busy);
// Writes this rank's files. REQUIRES: open_sharded() has returned an empty text. On rank 0, write_sharded() also waits
// until all ranks' files are durable, writes the manifest, and sends the manifest to the ranks that keep a disk
// (catalogue.h). If this rank has nothing to write, `why_not` is the exception that says why; otherwise null.
void write_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head,
                   std::span<const checkpoint::ItemSource> sources, const std::exception_ptr& why_not);
// Makes write_sharded() of `step` on this rank stop waiting for other ranks. A rank that ends early calls
// give_up_sharded(), because the other ranks write files only after a backward pass that this rank never reaches.
void give_up_sharded(ProcessGroup& group, const Catalogue& catalogue, std::int64_t step);

}  // namespace lockstep
