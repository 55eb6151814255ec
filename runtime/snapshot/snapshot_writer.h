// SPDX-License-Identifier: Apache-2.0
// SnapshotWriter writes this run's snapshots, one after another. SnapshotWriter
// writes a snapshot in the background while training continues. If a snapshot is due before the previous snapshot is
// written, SnapshotWriter skips the new snapshot. If an item is sharded, all ranks write; otherwise only rank 0 writes.
//
// Threads: only the training's thread may call the functions of SnapshotWriter.
// Failure: start() and report() log why a step was not saved, and training continues; save() throws the reason on rank
//   0, and PeerLost with the reason on the other ranks. Collective calls throw the group's errors.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/process_group.h"
#include "runtime/checkpoint/snapshot/manifest.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/snapshot/background_writer.h"
#include "runtime/snapshot/catalogue.h"
#include "runtime/snapshot/item_list.h"

namespace lockstep {

class SnapshotWriter {
 public:
  // All arguments must outlive this object.
  SnapshotWriter(ProcessGroup& group, Catalogue& catalogue);

  // Returns the last step that was saved, or from which the run resumed, or a negative number if no step was saved. A
  // step whose write has failed also counts as saved, so that last_saved() is equal on all ranks.
  std::int64_t last_saved() const { return last_saved_; }
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Starts to write `items` in the background, or logs why this step is not saved. Collective if an item is sharded.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Collective. Saves the step of `head`, unless the step is saved already, and returns when the step is durable.
  void save(const checkpoint::Manifest& head, std::vector<CapturedItem> items);
  // Blocks until all tensors of the started snapshot are copied, so that the optimizers may write the tensors again.
  void wait_copied() { thread_.wait_copied(); }
  // Waits until the started snapshot is durable or has failed, and logs a failure. If an item is sharded, the first
  // wait() after a start() that has begun to write is collective. `call` is the caller's name in messages.
  void wait(const char* call);
  // Waits until this rank's part of the snapshot is written, but not for other ranks, which may be dead.
  void wait_alone() { thread_.wait(); }
  // Logs the outcome of the last background write. Rank 0 logs success and failure; each other rank logs only a failure
  // to write to its own disk.
  void report();
  // Makes the background write on this rank stop waiting for other ranks. A rank that ends before the other ranks calls
  // give_up(). After give_up(), wait() is not collective.
  void give_up();

 private:
  // Writes `items`, on the background thread.
  void write(const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> items,
             const std::exception_ptr& why_not);
  // Waits for the other ranks at a barrier before this rank waits for its background thread. If a rank makes another
  // call and does not come to the barrier, the barrier throws an error that names the rank. Without the barrier, this
  // rank could wait for another rank that writes its files only after the next backward pass.
  void meet_to_wait(const char* call);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  std::int64_t last_saved_ = -1;
  std::int64_t being_written_ = -1;
  std::string why_it_is_written_;  // the reason in the manifest of that step
  bool is_open_ = false;           // whether start() opened a sharded step since meet_to_wait(); equal on all ranks
  // Only rank 0 uses left_out_ and next_left_out_.
  std::int64_t left_out_ = 0;  // the number of steps left out since the last warning
  Deadline next_left_out_ = Deadline::after({});
  BackgroundWriter thread_;  // the last member, because the thread uses the other members until it ends
};

}  // namespace lockstep
