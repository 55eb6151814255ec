// SPDX-License-Identifier: Apache-2.0
// These functions write a snapshot of all ranks. Each rank writes its slices to its own disk, and rank 0 writes the
// manifest after all files are durable. The ranks meet through the group's store, because the writers' threads may not
// start collectives while training does.
//
// The store has two keys per rank and snapshot. The key "written" holds the rank's part of the manifest, or the rank's
// failure, for rank 0. The key "manifest" exists if the rank keeps a disk. Rank 0 sets "manifest" to the whole
// manifest, or to nothing after a failure. The reader of a key erases the key.
//
// Threads: write_sharded() runs on the writer's thread; the other functions run on the training's thread.
// Failure: open_sharded() returns the same reason on every rank, and throws the group's errors. On rank 0
//   write_sharded() throws the reason why the snapshot is not durable. After a failure no files of the snapshot stay,
//   except on the disk of a rank to which rank 0 does not answer.
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
// the reason on every rank, and removes the folder. The reason is kBusy if a rank still writes an earlier step.
// `is_busy` says whether this rank still writes an earlier step.
std::string open_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head, bool is_busy);
// Writes this rank's files, after open_sharded(). Rank 0 then waits until all ranks' files are durable, writes the
// manifest, and sends the manifest to the ranks that keep a disk. `why_not` is null, or the reason why this rank has
// nothing to write.
void write_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head,
                   std::span<const checkpoint::ItemSource> sources, const std::exception_ptr& why_not);
// Ends the waits of this rank's thread for other ranks in write_sharded() of `step`. A rank that ends on its own calls
// give_up_sharded(), because the other ranks' copies end with a backward that this rank does not reach.
void give_up_sharded(ProcessGroup& group, const Catalogue& catalogue, std::int64_t step);

}  // namespace lockstep
