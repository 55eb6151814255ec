// SPDX-License-Identifier: Apache-2.0
// Communication hooks (ddp/comm_hook.h) written with torch's tensors.
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

// The bucket's buffer as a tensor of one dimension, which does not keep that memory: for use during the hook.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket);
// The gradient of one of its parameters, a view of tensor_of(bucket), in the parameter's shape, contiguous. If the
// parameter's own strides differ, its elements lie in their order.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket, std::size_t slice);

// A hook that blocks: gets tensor_of(bucket), which it may write, and returns the sum over the ranks, of as many
// elements of the same dtype on the same device, on the way through any collectives of bucket.group. Runs without
// recording gradients. Buckets don't overlap each other then, only the computation of other ranks: write a CommHook for
// a hook that starts its exchange and returns. On a device torch's current stream waits where the host would, and
// backward behind it.
LOCKSTEP_API CommHook tensor_hook(std::string name,
                                  std::function<at::Tensor(const GradBucket& bucket, at::Tensor sum)> run);

}  // namespace lockstep::libtorch
