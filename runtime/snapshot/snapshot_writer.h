// SPDX-License-Identifier: Apache-2.0
// Writes this run's snapshots, one after another: one is written in the background while training continues, and a step
// that is due meanwhile is left out. Rank 0 writes; if an item is sharded, all ranks write.
//
// Threads: the training's.
// Failure: start() and report() log why a step was not saved, and training continues; save() throws it, as on_rank0()
//   does. Collective calls throw the group's errors.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
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
  // All arguments outlive this object.
  SnapshotWriter(ProcessGroup& group, Catalogue& catalogue);

  // The step that was saved last, or from which the run resumed; negative: none. It counts a step that turns out not to
  // be durable, so it is the same on every rank.
  std::int64_t last_saved() const { return last_saved_; }
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Writes `items` in the background, or logs why this step is left out. Collective if an item is sharded.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Collective. Saves the step of `head`, unless it is saved, and returns when it is durable.
  void save(const checkpoint::Manifest& head, std::vector<CapturedItem> items);
  // Blocks until the optimizers may write the tensors of the items again.
  void wait_copied() { thread_.wait_copied(); }
  // Waits until the started state is durable, or has failed (logged). Collective, once for each step that start()
  // opened, if an item is sharded. `call` is the caller's name in messages.
  void wait(const char* call);
  // Waits only for this rank's part: other ranks may be dead.
  void wait_alone() { thread_.wait(); }
  // Logs the outcome of the last background write: rank 0 always, another rank if its disk has failed.
  void report();
  // On a rank that ends on its own: ends the other ranks' writes of the started step; wait() is not collective any
  // more.
  void give_up();

 private:
  // Runs on the background thread.
  void write(const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> items,
             const std::exception_ptr& why_not);
  // Runs before a rank waits for its thread, and names a rank that does something else meanwhile: the other ranks'
  // copies end with a backward that this rank does not reach.
  void meet_to_wait(const char* call);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  std::int64_t last_saved_ = -1;
  std::int64_t being_written_ = -1;
  bool is_open_ = false;  // whether start() opened a sharded step since meet_to_wait(), the same on every rank
  // Rank 0's fields.
  std::int64_t left_out_ = 0;  // left out since the last warning
  Deadline next_left_out_ = Deadline::after({});
  BackgroundWriter thread_;  // last: it uses the other members until it ends
};

}  // namespace lockstep
