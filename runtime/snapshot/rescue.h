// SPDX-License-Identifier: Apache-2.0
// Rescue keeps the state at the end of the last step() that this rank has finished. A survivor can save the kept state
// after another rank has died, or when the ranks stop in an evaluation.
//
// Memory that only optimizers write is not copied, because this memory has the kept step's state until an optimizer may
// write again. Memory that a forward or the program changes is copied in each step.
//
// Threads: only the training's thread calls this class.
// Failure: save() throws nothing, and logs why the step was not saved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/base/at_fatal_error.h"
#include "runtime/snapshot/catalogue.h"
#include "runtime/snapshot/item_list.h"
#include "runtime/snapshot/snapshot_writer.h"

namespace lockstep {

class Rescue {
 public:
  // All arguments must outlive this object. `are_steps_over` returns whether the device has finished the work that the
  // last backwards started.
  Rescue(ProcessGroup& group, Catalogue& catalogue, const ItemList& items, SnapshotWriter& writer,
         std::function<bool()> are_steps_over)
      : group_(group),
        catalogue_(catalogue),
        items_(items),
        writer_(writer),
        are_steps_over_(std::move(are_steps_over)) {}

  // Keeps the state at the end of a step. Each step calls keep(), so keep() is cheap.
  void keep(std::int64_t step);
  // Copies rank 0's buffers, with which a forward of the step after `step` has begun, so that a survivor has rank 0's
  // buffers too.
  void keep_buffers(std::int64_t step);
  // Notes that a backward has ended: optimizers may write until the next keep().
  void begin_update() { is_updating_ = true; }
  // Forgets the kept step, because the memory no longer holds only the step's state.
  void forget() { step_ = kNone; }
  // Returns the kept step, or a negative number if no step is kept.
  std::int64_t step() const { return step_; }
  // From now on, also saves the kept step when an uncaught exception ends the process.
  void save_at_fatal_error() {
    at_fatal_error_ = std::make_unique<AtFatalError>([this] { save("the job has failed"); });
  }
  // Saves the kept step at most once, on one of the ranks that call save(). With `all_live`, which means that the ranks
  // have agreed to stop, save() is collective; otherwise save() is not collective.
  void save(std::string_view why, bool all_live = false) noexcept;

 private:
  static constexpr std::int64_t kNone = -1;

  // Counted is a tensor that optimizers write, with the number of writes.
  struct Counted {
    std::function<std::uint64_t()> version;
    bool is_parameter = false;
    std::uint64_t kept = 0;  // the number of writes at the end of the step
  };

  void copy_tensors();
  void keep_counts();
  // Returns whether no optimizer has written anything since the last keep().
  bool is_as_kept() const;
  // Returns true and logs the reason if the step can't be saved, because some rank's part of the state is lost and may
  // not be dropped.
  bool refuse_lost(std::string_view why);
  // Returns a text for messages: the step from which the job resumes after a death, and the number of steps that the
  // job repeats.
  std::string cost_of_loss() const;
  // Saves a snapshot without shards: the first survivor to claim the snapshot writes the whole snapshot to its
  // own disk.
  void save_alone(std::string_view why, ItemList::Values values);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  const ItemList& items_;
  SnapshotWriter& writer_;
  const std::function<bool()> are_steps_over_;
  KeptState kept_;  // the tensors that a forward, or the program, changes after the step
  std::int64_t step_ = kNone;
  std::size_t looked_up_ = 0;      // the number of items whose tensors are known
  std::vector<Counted> counted_;   // the tensors that optimizers write
  bool are_writes_known_ = false;  // whether a write to every parameter was counted in the step before
  bool is_updating_ = false;       // whether a backward has ended since keep()
  bool is_saved_ = false;          // whether save() has saved the step or tried to
  std::unique_ptr<AtFatalError> at_fatal_error_;
};

}  // namespace lockstep
