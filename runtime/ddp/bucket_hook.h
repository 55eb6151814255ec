// SPDX-License-Identifier: Apache-2.0
// The communication hook of a Reducer, called with its buckets: scales the hook's input, checks its result, and divides
// the result. On a device it does so in the group's stream, and waits for nothing.
//
// Threads: the Reducer's.
// Failure: an Error that names the hook, with the hook's exception nested; PeerLost, Timeout and Mismatch of a hook
//   keep their type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep {

// The weight that a step's gradients stand for.
struct StepWeight {
  std::int64_t own = 0;   // this rank's weight
  std::int64_t unit = 1;  // gradients are multiplied by own / unit
  bool is_mean = true;    // gradients are divided by the ranks' sum; otherwise they are not divided
};

class BucketHook {
 public:
  // `specs` outlives it. InvalidArgument if the hook lacks its name or its function. `is_scaled`: the hook gets scaled
  // buckets (GradBucket::scale); otherwise the scale is 1.
  BucketHook(CommHook hook, std::shared_ptr<ProcessGroup> group, const std::vector<ParameterSpec>& specs,
             bool is_scaled = true);

  const std::string& name() const { return hook_.name; }
  bool is_scaled() const { return is_scaled_; }
  // Whether the bucket holds gradients, which the hook gets, or other data of the Reducer.
  bool takes(const Bucket& bucket) const;

  // Starts a step: `total` is all ranks' weight. On a device an earlier step's weight is enough for the scale; the
  // step's own is in the word `total_on_device` when the group's stream reaches finish().
  void begin(const BucketPlan& plan, std::int64_t step, const StepWeight& weight, std::int64_t total,
             const std::int64_t* total_on_device);
  // Gives the bucket to the hook, and returns the hook's result without its `finish`. The result is complete when the
  // Work is done and finish() has returned.
  HookedBucket start(std::size_t bucket, const BufferView& buffer);
  // Whether a Work that start() returned is done.
  bool is_done(std::size_t bucket, const Work& work) const;
  // Blocks until a Work that start() returned is done.
  void wait(std::size_t bucket, const Work& work, const Deadline& deadline) const;
  // Writes the mean (or the sum) over the ranks to the buffer. The bucket's Work is done; on a device the group's
  // stream waits for it.
  void finish(std::size_t bucket, const BufferView& buffer);
  // Forgets the results that were not taken.
  void drop() { finishes_.clear(); }

 private:
  // The hook, step and bucket, for messages.
  std::string named(std::size_t bucket) const;
  template <typename Call>
  auto guarded(std::size_t bucket, Call call) const;
  BufferView result_of(std::size_t bucket, const BufferView& buffer) const;
  void scale_down(const BufferView& buffer) const;

  std::shared_ptr<ProcessGroup> group_;
  DeviceRuntime* device_;  // null on the CPU
  Stream side_;            // outlives the memory that the hook's results keep
  CommHook hook_;
  const std::vector<ParameterSpec>& specs_;
  bool is_scaled_;
  const BucketPlan* plan_ = nullptr;  // the current step's plan
  std::int64_t step_ = 0;
  std::int64_t divisor_ = 0;                         // on the CPU
  const std::int64_t* divisor_on_device_ = nullptr;  // on a device; null: 1
  std::int64_t unit_ = 1;
  std::int64_t scale_ = 1;
  std::vector<std::function<BufferView()>> finishes_;  // by bucket
};

}  // namespace lockstep
