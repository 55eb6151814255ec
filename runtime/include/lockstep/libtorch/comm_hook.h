// SPDX-License-Identifier: Apache-2.0
// Defines helpers with which communication hooks (ddp/comm_hook.h) use torch's tensors.
//
//   const auto double_wire = lockstep::libtorch::tensor_hook("double", [](const lockstep::GradBucket& bucket,
//   at::Tensor sum) {
//     sum = sum.to(at::kDouble);
//     lockstep::libtorch::all_reduce(sum, bucket.group);
//     return sum.to(at::kFloat);
//   });
//   lockstep::libtorch::DistributedDataParallel ddp(model, group, {.comm_hook = double_wire});
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/ddp/comm_hook.h"

namespace lockstep::libtorch {

// Returns the bucket's buffer as a tensor of one dimension. The returned tensor does not keep the bucket's memory
// alive, so use the tensor only while the hook runs.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket);
// Returns the gradient of parameter `slice` of the bucket: a contiguous view of tensor_of(bucket) in the parameter's
// shape. If the parameter is not contiguous, the view's elements lie in the order that the parameter's strides give.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket, std::size_t slice);

// Makes a hook that blocks. `run` gets tensor_of(bucket), which `run` may write, and returns the sum over the ranks, in
// a tensor with the bucket's number of elements, dtype and device. `run` may call any collectives of bucket.group;
// autograd records no gradients in `run`. The exchange of one bucket overlaps the computation of other ranks, but not
// the exchange of another bucket. If a hook should return before its exchange ends, write a CommHook, and not a
// tensor_hook(). On a device, torch's current stream waits for the exchange, and the host does not wait; backward's
// later work runs after the work in this stream.
LOCKSTEP_API CommHook tensor_hook(std::string name,
                                  std::function<at::Tensor(const GradBucket& bucket, at::Tensor sum)> run);

}  // namespace lockstep::libtorch
