// SPDX-License-Identifier: Apache-2.0
// The losses that a program records, from record_loss() until they travel in a step's note.
//
// On the CPU a loss travels with its own step. On a device the host must not wait for it: it is copied to pinned memory
// in the program's stream, and travels kDelay steps later, when the step is known to be over on the device. With a
// single rank nothing travels: a loss is read after the device has reached it.
//
// A note has integers that are added up. So a rank's sum is kept, and travels, as an integer and a fraction in fixed
// point, each with room for the sum of all parts; a value that no such sum reaches means "no loss". The sum of the
// parts depends neither on their order nor on which of them a rank has.
//
// Threads: the replica's.
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

// The number of parts in which a step's loss travels.
inline int loss_parts(const Reproducible& reproducible, int ranks) {
  return reproducible.is_on() ? reproducible.micro_batches : ranks;
}

// This rank's loss and weight over the micro-batches of a step.
class LossSum {
 public:
  // `parts` is loss_parts(), equal on all ranks.
  explicit LossSum(int parts);

  // Adds a micro-batch's loss, the mean or the sum of its terms as `kind` says, and its weight. A loss of weight 0
  // doesn't count.
  void add(Loss kind, std::optional<double> loss, std::int64_t weight);
  // Sets weight and loss in `note`.
  void write(StepNote& note) const;

 private:
  int parts_;
  std::int64_t whole_ = 0;
  std::int64_t fraction_ = 0;
  std::int64_t weight_ = 0;
  bool is_known_ = true;
  bool is_finite_ = true;  // and not too large to travel
};

// The global batch, from the sum of the ranks' notes.
GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int parts);

class LossRecord {
 public:
  // `parts` is LossSum's.
  LossRecord(Loss kind, std::shared_ptr<const ProcessGroup> group, int parts);

  // Records the loss of the micro-batch whose backward comes next; the last call counts. `loss` is one floating-point
  // number, on a device in the order of `stream`; `owner` keeps it until it has been copied.
  void record(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner);
  void record(double loss);
  // Notes that a forward has begun another micro-batch.
  void begin_forward() { next_.reset(); }
  void begin_backward(std::int64_t weight);
  // Closes the record of synchronised step `step`, whose last micro-batch has begun its backward.
  void close_step(std::int64_t step);
  // Forgets step `step`, which is given up, with its micro-batches.
  void forget(std::int64_t step);

  // Sets in `note` the losses that travel with step `step`, with several ranks. On a device the note of three steps
  // before has been read, so that step's losses are on the host.
  void write(StepNote& note, std::int64_t step);
  // The global batch, from the sum of all ranks' notes.
  GlobalBatch batch_of(NotedStep noted) const;
  // With a single rank: reads the next closed step, if its losses are on the host; otherwise returns false.
  bool read_known(GlobalBatch& batch);

 private:
  // A number on the host, or on its way there.
  struct Recorded {
    double value = 0;
    DType dtype = DType::f64;  // of the number in `pinned`
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
  std::vector<MicroBatch> open_;  // the current step's
  std::deque<Step> closed_;       // not read yet, in their order
};

}  // namespace lockstep
