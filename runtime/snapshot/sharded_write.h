// SPDX-License-Identifier: Apache-2.0
// A snapshot that all ranks write: each writes its slices to its own disk, and rank 0 the manifest after all files are
// durable. The ranks meet through the group's store, because their writers' threads may not start collectives while
// training does.
//
// The store has two keys per rank and snapshot: "written", the rank's part of the manifest or its failure, for rank 0;
// and, if the rank keeps a disk, "manifest", from rank 0: the whole manifest, or nothing. The reader of a key erases
// it.
//
// Threads: write_sharded() runs on the writer's thread, the other functions on the training's.
// Failure: open_sharded() returns the reason, on every rank alike, and throws the group's errors. write_sharded()
//   throws on rank 0 why the snapshot is not durable. After a failure no files of the snapshot stay, except on a rank's
//   disk to which rank 0 does not answer.
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

// Collective. Makes the step's folder on each disk and returns an empty text. If the step can't be saved now, returns
// the reason, on every rank, and removes the folder: kBusy if a rank still writes the step before; `is_busy` says so of
// this rank.
std::string open_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head, bool is_busy);
// Writes this rank's files, after open_sharded(). Rank 0 then waits until all ranks' files are durable, writes the
// manifest, and sends it to the ranks that keep a disk. `why_not` is null, or the reason why there is nothing to write.
void write_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head,
                   std::span<const checkpoint::ItemSource> sources, const std::exception_ptr& why_not);
// On a rank that ends on its own: ends its thread's waits for other ranks in write_sharded() of that step. The other
// ranks' copies end with a backward that this rank does not reach.
void give_up_sharded(ProcessGroup& group, const Catalogue& catalogue, std::int64_t step);

}  // namespace lockstep
