// SPDX-License-Identifier: Apache-2.0
// Rescue keeps the training state at the end of the last step that this rank has finished. A surviving rank can save
// the kept state after another rank has died. Ranks that stop during an evaluation can also save the kept state.
//
// Rescue does not copy memory that only optimizers write, because this memory has the kept step's state until an
// optimizer writes again. In each step, Rescue copies the memory that a forward pass or the program changes.
//
// Threads: only the training's thread may call the functions of Rescue.
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
  // All arguments must outlive this object. `are_steps_over` returns whether the device has finished the work of the
  // last backward passes.
  Rescue(ProcessGroup& group, Catalogue& catalogue, const ItemList& items, SnapshotWriter& writer,
         std::function<bool()> are_steps_over)
      : group_(group),
        catalogue_(catalogue),
        items_(items),
        writer_(writer),
        are_steps_over_(std::move(are_steps_over)) {}

  // Keeps the training state at the end of `step`. Every step calls keep(), so keep() must be cheap.
  void keep(std::int64_t step);
  // Copies the module's buffers again, so that every survivor saves rank 0's buffers. Call keep_buffers() when the
  // forward pass after `step` has received rank 0's buffers.
  void keep_buffers(std::int64_t step);
  // Records that a backward pass has ended, so that optimizers may write tensors until the next keep().
  void begin_update() { is_updating_ = true; }
  // Forgets the kept step. Call forget() if the memory no longer has the state at the end of that step.
  void forget() { step_ = kNone; }
  // Returns the step whose state Rescue keeps, or a negative number if Rescue keeps no state.
  std::int64_t step() const { return step_; }
  // Makes this object call save() if an uncaught exception ends the process.
  void save_at_fatal_error() {
    at_fatal_error_ = std::make_unique<AtFatalError>([this] { save("the job has failed"); });
  }
  // Saves the kept step at most once, on one of the ranks that call save(). If `all_live` is true, the ranks have
  // agreed to stop, and save() is collective. If `all_live` is false, save() is not collective.
  void save(std::string_view why, bool all_live = false) noexcept;

 private:
  static constexpr std::int64_t kNone = -1;

  // A Counted describes a tensor that optimizers write, and has the number of writes to the tensor.
  struct Counted {
    std::function<std::uint64_t()> version;
    bool is_parameter = false;
    std::uint64_t kept = 0;  // the number of writes at the end of the step
  };

  void copy_tensors();
  void keep_counts();
  // Returns whether no optimizer has written a tensor since the last keep().
  bool is_as_kept() const;
  // Returns whether a dead rank had values or shards without which the step can't be saved; if so, logs the reason.
  bool refuse_lost(std::string_view why);
  // Returns a text for messages that says from which step the job resumes, and how many steps the job repeats.
  std::string cost_of_loss() const;
  // Saves the kept step without a collective. REQUIRES: no item is sharded. The first surviving rank that gets the
  // step's RescueClaim writes the whole snapshot to its own disk.
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
