// SPDX-License-Identifier: Apache-2.0
// BucketHook calls the communication hook of a Reducer with the Reducer's buckets. BucketHook scales the gradients that
// the hook gets, checks the buffer that the hook returns, and divides the sum in this buffer. On a device, BucketHook
// queues the scaling and the division in the group's stream without blocking the host.
//
// Threads: only the Reducer's thread calls the functions of BucketHook.
// Failure: if the hook throws, BucketHook throws an Error that names the hook and nests the hook's exception. A
//   PeerLost, Timeout or Mismatch that the hook throws passes through BucketHook unchanged.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep {

// StepWeight holds a rank's weight in a step, the unit by which weights are divided, and whether to average gradients.
struct StepWeight {
  std::int64_t own = 0;   // this rank's weight
  std::int64_t unit = 1;  // the unit of weights: gradients are multiplied by own / unit
  bool is_mean = true;    // whether gradients are divided by the sum of the ranks' weights
};

class BucketHook {
 public:
  // `specs` must outlive this object. Throws InvalidArgument if the hook lacks its name or its function. If `is_scaled`
  // is true, the hook gets buckets that are divided by GradBucket::scale; otherwise GradBucket::scale is 1.
  BucketHook(CommHook hook, std::shared_ptr<ProcessGroup> group, const std::vector<ParameterSpec>& specs,
             bool is_scaled = true);

  const std::string& name() const { return hook_.name; }
  bool is_scaled() const { return is_scaled_; }
  // Returns true if `bucket` holds gradients, and false if `bucket` holds the map of used parameters, which the hook
  // does not get.
  bool takes(const Bucket& bucket) const;

  // Starts a step. `total` is the weight of all ranks. On a device `total` may be the weight of an earlier step,
  // because `total` only determines the scale. `total_on_device` points to device memory that holds this step's weight
  // when the group's stream runs the division of finish().
  void begin(const BucketPlan& plan, std::int64_t step, const StepWeight& weight, std::int64_t total,
             const std::int64_t* total_on_device);
  // Calls the hook with the bucket. Returns the hook's HookedBucket without the function in the member `finish`, which
  // BucketHook::finish() calls later. The bucket is complete when the returned Work is done and BucketHook::finish()
  // has returned.
  HookedBucket start(std::size_t bucket, const BufferView& buffer);
  // Returns whether `work`, which start() returned for the bucket, is done.
  bool is_done(std::size_t bucket, const Work& work) const;
  // Blocks until `work`, which start() returned for the bucket, is done.
  void wait(std::size_t bucket, const Work& work, const Deadline& deadline) const;
  // Writes the mean of all ranks' gradients, or the sum if StepWeight::is_mean is false, to `buffer`. REQUIRES: the
  // bucket's Work is done or, on a device, the group's stream waits for the Work.
  void finish(std::size_t bucket, const BufferView& buffer);
  // Drops the hook's `finish` functions that BucketHook::finish() has not called yet.
  void drop() { finishes_.clear(); }

 private:
  // Returns a text for error messages that names the hook, the step and the bucket.
  std::string named(std::size_t bucket) const;
  template <typename Call>
  auto guarded(std::size_t bucket, Call call) const;
  BufferView result_of(std::size_t bucket, const BufferView& buffer) const;
  void scale_down(const BufferView& buffer) const;

  std::shared_ptr<ProcessGroup> group_;
  DeviceRuntime* device_;  // the device's runtime; null on the CPU
  Stream side_;            // the side stream, which outlives the memory that the hook's results keep
  CommHook hook_;
  const std::vector<ParameterSpec>& specs_;
  bool is_scaled_;
  const BucketPlan* plan_ = nullptr;  // the current step's plan
  std::int64_t step_ = 0;
  std::int64_t divisor_ = 0;                         // the divisor on the CPU
  const std::int64_t* divisor_on_device_ = nullptr;  // the divisor on a device; null means 1
  std::int64_t unit_ = 1;
  std::int64_t scale_ = 1;
  std::vector<std::function<BufferView()>> finishes_;  // the hook's `finish` of each bucket
};

}  // namespace lockstep
