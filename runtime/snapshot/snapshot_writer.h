// SPDX-License-Identifier: Apache-2.0
// This run's snapshots, one after another in time: one is written in the background while training continues, and a
// step that is due meanwhile is left out. Rank 0 writes; if an item is sharded, all ranks do.
//
// Threads: the training's. Failure: start() and report() log why a step was not saved, and training continues; save()
// throws it, as on_rank0() does. What is collective throws the group's errors.
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
  // All outlive this object.
  SnapshotWriter(ProcessGroup& group, Catalogue& catalogue);

  // The step that was saved last, or from which the run resumed; negative: none. Also one that turns out not to be
  // durable, the same on every rank.
  std::int64_t last_saved() const { return last_saved_; }
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Writes `items` in the background, or logs why this step is left out. Collective if an item is sharded.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Collective: saves the step of `head`, unless it is saved, and returns once it is durable.
  void save(const checkpoint::Manifest& head, std::vector<CapturedItem> items);
  // Blocks until the optimizers may write the tensors of the items again.
  void wait_copied() { thread_.wait_copied(); }
  // Until what was started is durable, or has failed, as the log says. Collective once for each step that was started
  // with an item in shares; `call` is for messages.
  void wait(const char* call);
  // wait() for this rank's part alone, when other ranks may be gone.
  void wait_alone() { thread_.wait(); }
  // Logs the outcome of the last background write, on rank 0, or that of this rank's disk if it has failed.
  void report();
  // On a rank that ends by itself: the others' writes of the started step are ended, and wait() is not collective.
  void give_up();

 private:
  // On the background thread.
  void write(const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> items,
             const std::exception_ptr& why_not);
  // Before a rank waits for its thread: a rank that does something else meanwhile is named, for the copies of the
  // others end with a backward that this rank does not come to.
  void meet_to_wait(const char* call);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  std::int64_t last_saved_ = -1;
  std::int64_t being_written_ = -1;
  bool is_open_ = false;  // start() has opened a sharded step since meet_to_wait(), the same on every rank
  // Rank 0's.
  std::int64_t left_out_ = 0;  // since the line that said so
  Deadline next_left_out_ = Deadline::after({});
  BackgroundWriter thread_;  // last: it uses the others until it ends
};

}  // namespace lockstep
