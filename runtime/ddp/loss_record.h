// SPDX-License-Identifier: Apache-2.0
// LossRecord keeps the losses that a program passes to record_loss(), until the losses travel to the other ranks in
// a StepNote.
//
// On the CPU the losses of a step travel in the step's own StepNote. On a device the host must not wait for a loss. A
// device copies each loss to pinned memory in the program's stream. The loss travels in the StepNote of a later step,
// when the device is known to have finished the step of the loss. With a single rank no loss travels: the host reads
// each loss after the device has copied the loss.
//
// A StepNote has integers that the ranks add up, so a rank keeps its sum of losses as an integer and a fraction in
// fixed point. The integer and the fraction have room for the sum over all parts (see loss_parts()). A StepNote without
// a loss holds a flag, which is a number that no sum of losses reaches. The sum over the parts depends neither on the
// order of the parts nor on which rank has which part.
//
// Threads: only the replica's thread calls the functions of LossRecord and LossSum.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/ddp/step_note.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/stream.h"

namespace lockstep {

// Returns the number of parts that add up to a step's loss: the number of fixed micro-batches, or the number of ranks
// if there are no fixed micro-batches.
inline int loss_parts(const Reproducible& reproducible, int ranks) {
  return reproducible.is_on() ? reproducible.micro_batches : ranks;
}

// LossSum adds up this rank's losses and weights over the micro-batches of a step.
class LossSum {
 public:
  // `parts` is loss_parts(), equal on all ranks.
  explicit LossSum(int parts);

  // Adds a micro-batch's loss and weight. `kind` says whether `loss` is the mean or the sum over the micro-batch's loss
  // terms. A loss of weight 0 doesn't count.
  void add(Loss kind, std::optional<double> loss, std::int64_t weight);
  // Sets weight and loss in `note`.
  void write(StepNote& note) const;

 private:
  int parts_;
  std::int64_t whole_ = 0;
  std::int64_t fraction_ = 0;
  std::int64_t weight_ = 0;
  bool is_known_ = true;
  bool is_finite_ = true;  // whether the loss is finite and small enough to travel
};

// Returns the GlobalBatch of step `noted.step`, computed from the ranks' combined StepNote in `noted`.
GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int parts);

class LossRecord {
 public:
  // `parts` is loss_parts(), equal on all ranks.
  LossRecord(Loss kind, std::shared_ptr<const ProcessGroup> group, int parts);

  // Records the loss of the micro-batch whose backward comes next; a later call replaces the loss. `loss` is one
  // floating-point number. If the number is on a device, the device copies the number after the work that is in
  // `stream`. `owner` keeps the loss's memory alive until the loss has been copied.
  void record(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner);
  void record(double loss);
  // Forgets a recorded loss that no backward has used. Call begin_forward() when another forward begins.
  void begin_forward() { next_.reset(); }
  void begin_backward(std::int64_t weight);
  // Assigns the losses of the micro-batches since the last close_step() to synchronised step `step`. Call close_step()
  // when the backward of the step's last micro-batch has begun.
  void close_step(std::int64_t step);
  // Forgets the losses of step `step`, which is given up.
  void forget(std::int64_t step);

  // Writes to `note` the losses that travel in the StepNote of step `step`, if there are several ranks. On a device,
  // write() writes the losses of step `step` - 3, which are on the host because the StepNote of step `step` - 3 has
  // been read.
  void write(StepNote& note, std::int64_t step);
  // Returns the GlobalBatch whose losses are in `noted`, the ranks' combined StepNote.
  GlobalBatch batch_of(NotedStep noted) const;
  // With a single rank, sets `batch` to the loss and weight of the next step that close_step() has closed. Returns
  // false if no such step exists, or if the step's losses are not on the host yet.
  bool read_known(GlobalBatch& batch);

 private:
  // Recorded is a loss that is on the host or is being copied to the host.
  struct Recorded {
    double value = 0;
    DType dtype = DType::f64;  // the dtype of the number in `pinned`
    std::shared_ptr<void> owner = nullptr;
    std::shared_ptr<void> pinned = nullptr;
    std::optional<Event> arrived = std::nullopt;
  };
  struct MicroBatch {
    std::optional<Recorded> loss;
    std::int64_t weight = 0;
  };
  struct Step {
    std::int64_t step = 0;
    std::vector<MicroBatch> micro_batches;
  };

  std::int64_t delay() const;
  double read(const Recorded& loss) const;
  LossSum sum_of(const Step& step) const;

  Loss kind_;
  std::shared_ptr<const ProcessGroup> group_;
  int parts_;
  std::optional<Recorded> next_;
  std::vector<MicroBatch> open_;  // the micro-batches of the current step
  std::deque<Step> closed_;       // the closed steps that are not read yet, in order
};

}  // namespace lockstep
