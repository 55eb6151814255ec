// SPDX-License-Identifier: Apache-2.0
// FiniteCheck looks for NaN and infinity in this rank's own gradients when the gradients are final, before the ranks
// sum the gradients.
//
// On a device a kernel looks for NaN and infinity; the kernel runs in the compute stream, after the work that writes
// the gradients. The begin() of a later step reads the kernel's result when the device has copied this result to the
// host memory.
//
// Threads: only the Reducer's thread calls the functions of FiniteCheck.
// Failure: throws DeviceError. With NotFinite::raise, a NaN or infinity throws NotFiniteGradient and fails the group on
//   every rank. NotFiniteGradient is thrown by look() on the CPU, and by begin() and settle() on a device.
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
  // Returns the number of bytes that a FiniteCheck needs after the gradients in an arena on a device, for
  // any BucketPlan.
  static std::size_t bytes_behind(std::size_t parameters) { return parameters * sizeof(std::int64_t); }

  // `memory`, `specs` and `micro_batches` must outlive this object. On a device, the arena has
  // bytes_behind(specs.size()) bytes for the FiniteCheck at offset `behind`. Only the first `gradients` elements of
  // `specs` are parameters. `micro_batches` holds the sums that the ranks exchange, or is null if all gradients are in
  // the arena.
  FiniteCheck(NotFinite reaction, std::shared_ptr<ProcessGroup> group, const GradientMemory& memory, std::size_t behind,
              const std::vector<ParameterSpec>& specs, std::size_t gradients, const MicroBatchSums* micro_batches);
  // Reads those results of ended steps that the device has already copied to the host.
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Begins a step. Call begin(), look() and end() in this order for each step. `plan` must stay valid until the step's
  // results are read; call settle() before begin() with another plan.
  void begin(const BucketPlan& plan, std::int64_t step);
  // Leaves parameter `parameter`, which is known to be finite, out of this step's looks on the CPU. Without effect on a
  // device, and with `micro_batches`.
  void skip(std::size_t parameter) { is_skipped_[parameter] = 1; }
  // Looks for NaN and infinity in `own`, the buffer of bucket `bucket`, whose gradients are final and have not been
  // sent yet.
  void look(std::size_t bucket, const BufferView& own);
  // Ends the step. On a device, queues the copy of the step's results to the host.
  void end();

  // Reads the results of all steps that have ended; on a device the host waits for the results.
  void settle(const Deadline& deadline);

 private:
  // A Step holds the results of a step on a device that the host has not read yet.
  struct Step {
    std::int64_t number = 0;
    std::shared_ptr<void> found = nullptr;   // the result of each bucket, on the host
    std::shared_ptr<void> copied = nullptr;  // the event after the copy to `found`
  };
  // Looks for NaN and infinity in each gradient of bucket `bucket` that is not skipped; with `micro_batches` in each
  // sum of micro-batches that this rank sends.
  void look_at_each(std::size_t bucket);
  bool skips_some_of(std::size_t bucket) const;
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
  std::int64_t step_ = -1;        // the number of the step that began last
  std::vector<char> is_skipped_;  // by parameter, in this step

  // Points to the results of the kernels on a device, an int64 for each bucket. `words_` points into the arena, after
  // the gradients. `none_found_` is host memory that holds the values to which begin() sets the results.
  std::int64_t* words_ = nullptr;
  std::shared_ptr<void> none_found_;
  std::deque<Step> pending_;

  OwnerProcess owner_;
};

}  // namespace lockstep
