// SPDX-License-Identifier: Apache-2.0
// FiniteCheck looks for NaN and infinity in this rank's own gradients, after their last write and before the sum over
// the ranks.
//
// On a device a kernel looks, queued after the gradients in the compute stream. A later begin() reads the kernel's
// result, after the device has reached the step's event.
//
// Threads: only the Reducer's thread calls this class.
// Failure: throws DeviceError. With NotFinite::raise, throws NotFiniteGradient and fails the group on every rank: on
//   the CPU in look(), on a device in begin() and settle().
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
  // Returns the number of bytes that an arena on a device needs after its gradients, for any plan.
  static std::size_t bytes_behind(std::size_t parameters) { return parameters * sizeof(std::int64_t); }

  // `memory`, `specs` and `micro_batches` must outlive this object. On a device the arena has
  // bytes_behind(specs.size()) bytes for this object at `behind`. Only the first `gradients` specs belong to
  // parameters. `micro_batches` has the sums that the ranks exchange; null if the arena has all gradients.
  FiniteCheck(NotFinite reaction, std::shared_ptr<ProcessGroup> group, const GradientMemory& memory, std::size_t behind,
              const std::vector<ParameterSpec>& specs, std::size_t gradients, const MicroBatchSums* micro_batches);
  // Reads the results of the last steps, as far as the results have arrived.
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Begins a step. Call begin(), look() and end() in this order for each step. `plan` must stay valid until the step's
  // results are read; call settle() before begin() with another plan.
  void begin(const BucketPlan& plan, std::int64_t step);
  // Looks at the gradients of a bucket that is final and not yet sent.
  void look(std::size_t bucket, const BufferView& own);
  // Ends the step. On a device, queues the copy of the step's results to the host.
  void end();

  // Reads the results of all steps that have ended; on a device the host waits for the results.
  void settle(const Deadline& deadline);

 private:
  // A Step is a step on a device whose results are not read yet.
  struct Step {
    std::int64_t number = 0;
    std::shared_ptr<void> found = nullptr;   // the result of each bucket, on the host
    std::shared_ptr<void> copied = nullptr;  // the event after the copy to `found`
  };
  // With fixed micro-batches, looks at the bucket in each of this rank's whole nodes.
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
  std::int64_t step_ = -1;  // the number of the step that began last

  // On a device, `words_` has a word for each bucket, which kernels write; the words lie after the gradients in the
  // arena. `none_found_` has the words' initial values on the host.
  std::int64_t* words_ = nullptr;
  std::shared_ptr<void> none_found_;
  std::deque<Step> pending_;

  OwnerProcess owner_;
};

}  // namespace lockstep
