// SPDX-License-Identifier: Apache-2.0
// Looks for NaN and infinity in this rank's own gradients, after their last write and before the sum over the ranks.
//
// On a device a kernel looks, queued after the gradients in the compute stream; a later begin() reads its result, after
// the step's event was reached.
//
// Threads: the Reducer's.
// Failure: DeviceError. With NotFinite::raise NotFiniteGradient, and the group fails on every rank: on the CPU from
//   look(), on a device from begin() and settle().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/owner_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/ddp/not_finite.h"
#include "runtime/ddp/gradient_memory.h"
#include "runtime/ddp/micro_batch_sums.h"
#include "runtime/ddp/wrong_numbers.h"

namespace lockstep {

class FiniteCheck {
 public:
  // The bytes that an arena needs on a device after its gradients, for any plan.
  static std::size_t bytes_behind(std::size_t parameters) { return parameters * sizeof(std::int64_t); }

  // `memory` and `specs` outlive it; the arena has bytes_behind(specs.size()) more from `behind` on. `specs` from
  // `gradients` on do not belong to a parameter. `micro_batches` has the sums that the ranks exchange, and outlives
  // this object; null if the arena has all gradients.
  FiniteCheck(NotFinite reaction, std::shared_ptr<ProcessGroup> group, const GradientMemory& memory, std::size_t behind,
              const std::vector<ParameterSpec>& specs, std::size_t gradients, const MicroBatchSums* micro_batches);
  // Reads the known results of the last steps.
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Call begin(), look() and end() in this order, for each step. `plan` is used until the step's results are read: call
  // settle() before begin() with another plan.
  void begin(const BucketPlan& plan, std::int64_t step);
  // Looks at a bucket that is final and not yet sent.
  void look(std::size_t bucket, const BufferView& own);
  // Ends the step's looks.
  void end();

  // Reads the results of all steps that have ended; on a device the host waits for them.
  void settle(const Deadline& deadline);

 private:
  // A step on a device.
  struct Step {
    std::int64_t number = 0;
    std::shared_ptr<void> found = nullptr;   // on the host: the result of each bucket
    std::shared_ptr<void> copied = nullptr;  // the event after the copy to `found`
  };
  // Looks, with fixed micro-batches, at the sums before the last one, which lie outside the arena.
  void look_at_micro_batches(std::size_t bucket);
  void read_ended();
  void read(const Step& step);
  const ParameterSpec& parameter_at(std::size_t bucket, std::int64_t element) const;

  std::shared_ptr<ProcessGroup> group_;
  WrongNumbers wrong_;
  const GradientMemory& memory_;
  const std::vector<ParameterSpec>& specs_;
  std::size_t gradients_;
  const MicroBatchSums* micro_batches_;
  const BucketPlan* plan_ = nullptr;
  std::int64_t step_ = -1;  // the step that began last

  // On a device: words that kernels write to, one for each bucket, after the gradients in the arena; and on the host
  // their initial values.
  std::int64_t* words_ = nullptr;
  std::shared_ptr<void> none_found_;
  std::deque<Step> pending_;

  OwnerProcess owner_;
};

}  // namespace lockstep
