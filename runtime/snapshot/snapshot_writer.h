// SPDX-License-Identifier: Apache-2.0
// SnapshotWriter writes this run's snapshots, one after another. A snapshot is written in the background while training
// continues, and a step that is due meanwhile is left out. Rank 0 writes; if an item is sharded, all ranks write.
//
// Threads: only the training's thread calls this class.
// Failure: start() and report() log why a step was not saved, and training continues; save() throws the reason, as
//   on_rank0() does. Collective calls throw the group's errors.
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

  // Returns the step that was saved last, or from which the run resumed; negative if there is no such step. A step that
  // turns out not to be durable counts too, so last_saved() is equal on all ranks.
  std::int64_t last_saved() const { return last_saved_; }
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Starts to write `items` in the background, or logs why this step is left out. Collective if an item is sharded.
  void start(checkpoint::Manifest head, std::vector<CapturedItem> items);
  // Collective. Saves the step of `head`, unless the step is saved already, and returns when the step is durable.
  void save(const checkpoint::Manifest& head, std::vector<CapturedItem> items);
  // Blocks until the optimizers may write the tensors of the items again.
  void wait_copied() { thread_.wait_copied(); }
  // Waits until the started state is durable or has failed, and logs a failure. If an item is sharded, the first wait()
  // for each step that start() opened is collective. `call` is the caller's name in messages.
  void wait(const char* call);
  // Waits only until this rank's part is written, because other ranks may be dead.
  void wait_alone() { thread_.wait(); }
  // Logs the outcome of the last background write. Rank 0 always logs; another rank logs only if its disk has failed.
  void report();
  // Ends this rank's waits for other ranks in the write of the started step. A rank that ends on its own calls
  // give_up(). After give_up(), wait() is not collective.
  void give_up();

 private:
  // Writes `items`, on the background thread.
  void write(const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> items,
             const std::exception_ptr& why_not);
  // Meets the other ranks at a barrier before this rank waits for its thread. The barrier's error names a rank that
  // makes another call instead: that rank's copies would end with a backward that this rank does not reach.
  void meet_to_wait(const char* call);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  std::int64_t last_saved_ = -1;
  std::int64_t being_written_ = -1;
  std::string why_it_is_written_;  // the reason in the manifest of that step
  bool is_open_ = false;           // whether start() opened a sharded step since meet_to_wait(); equal on all ranks
  // Only rank 0 uses the next two fields.
  std::int64_t left_out_ = 0;  // the number of steps left out since the last warning
  Deadline next_left_out_ = Deadline::after({});
  BackgroundWriter thread_;  // the last member, because the thread uses the other members until it ends
};

}  // namespace lockstep
