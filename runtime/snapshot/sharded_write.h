// SPDX-License-Identifier: Apache-2.0
// A snapshot that all ranks write, each its slices, to its own disk: rank 0 writes its manifest once the files of all
// are durable. The ranks meet over the group's store, for their writers' threads may not start collectives while the
// training does.
//
// Of each rank the store has two keys for a snapshot: "written", its part of the manifest or its failure, for rank 0;
// and, if it keeps a disk, "manifest", the whole one or nothing, from rank 0. Their reader erases them.
//
// Threads: write_sharded() is the writer's, the others are the training's. Failure: open_sharded() returns why not, on
// every rank alike, and throws the group's errors; write_sharded() throws on rank 0 why the snapshot is not durable.
// After a failure nothing of the snapshot stays, but on disks whose rank 0 does not answer.
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

// Collective: makes the step's folder on each disk. Empty, or why it can't be saved now, on every rank; then it has
// gone again. kBusy if a rank still writes the step before: `is_busy`, this one.
std::string open_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head, bool is_busy);
// After open_sharded(): writes this rank's files. Rank 0 then waits until all have told it that theirs are durable,
// writes the manifest, and tells the ranks that keep a disk. `why_not`: null, or why there is nothing to write.
void write_sharded(ProcessGroup& group, Catalogue& catalogue, checkpoint::Manifest head,
                   std::span<const checkpoint::ItemSource> sources, const std::exception_ptr& why_not);
// On a rank that ends by itself: ends its thread's waits for others in write_sharded() of that step, whose copies end
// with a backward that this rank does not come to.
void give_up_sharded(ProcessGroup& group, const Catalogue& catalogue, std::int64_t step);

}  // namespace lockstep
