// SPDX-License-Identifier: Apache-2.0
// The state at the end of the last step() that this rank has finished, kept so that a survivor can save it when another
// rank has died, or when the ranks stop in an evaluation.
//
// What only optimizers write is not copied: it stands for the kept step until an optimizer may have written again. What
// a forward or the program changes is copied in each step.
//
// Threads: the training's. Failure: save() throws nothing, and logs why the step was not saved.
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
  // All outlive this object. `are_steps_over`: whether what the last backwards have started on a device is over there.
  Rescue(ProcessGroup& group, Catalogue& catalogue, const ItemList& items, SnapshotWriter& writer,
         std::function<bool()> are_steps_over)
      : group_(group),
        catalogue_(catalogue),
        items_(items),
        writer_(writer),
        are_steps_over_(std::move(are_steps_over)) {}

  // At the end of a step. Cheap: it is called in each.
  void keep(std::int64_t step);
  // A forward of the step after `step` has begun with rank 0's buffers: a survivor then has them too.
  void keep_buffers(std::int64_t step);
  // A backward has ended: optimizers may write until the next keep().
  void begin_update() { is_updating_ = true; }
  // The kept step is not to be saved: memory holds more than its state.
  void forget() { step_ = kNone; }
  // Negative: none.
  std::int64_t step() const { return step_; }
  // From now on also when an exception that nobody catches ends the process.
  void save_at_fatal_error() {
    at_fatal_error_ = std::make_unique<AtFatalError>([this] { save("the job has failed"); });
  }
  // On one of the ranks that call it: saves the kept step, at most once. Not collective, unless `all_live`: the ranks
  // have agreed to stop.
  void save(std::string_view why, bool all_live = false) noexcept;

 private:
  static constexpr std::int64_t kNone = -1;

  // A tensor that optimizers write, by the number of writes.
  struct Counted {
    std::function<std::uint64_t()> version;
    bool is_parameter = false;
    std::uint64_t kept = 0;  // at the end of the step
  };

  void copy_tensors();
  void keep_counts();
  // Whether no optimizer has written anything since the last keep().
  bool is_as_kept() const;
  // If some rank's part of the state went with it and may not be dropped, logs so; the step can't be saved then.
  bool refuse_lost(std::string_view why);
  // The step from which the job resumes where a death costs the last ones, and the number of those, for a message.
  std::string cost_of_loss() const;
  // Saves a snapshot without shares: the first survivor to claim it writes the whole of it, to its own disk.
  void save_alone(std::string_view why, ItemList::Values values);

  ProcessGroup& group_;
  Catalogue& catalogue_;
  const ItemList& items_;
  SnapshotWriter& writer_;
  const std::function<bool()> are_steps_over_;
  KeptState kept_;  // the tensors that a forward, or the program, changes after the step
  std::int64_t step_ = kNone;
  std::size_t looked_up_ = 0;      // items whose tensors are known
  std::vector<Counted> counted_;   // the tensors that optimizers write
  bool are_writes_known_ = false;  // a write to every parameter was counted in the step before
  bool is_updating_ = false;       // a backward has ended, and keep() was not called since
  bool is_saved_ = false;          // or tried
  std::unique_ptr<AtFatalError> at_fatal_error_;
};

}  // namespace lockstep
