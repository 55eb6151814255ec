// SPDX-License-Identifier: Apache-2.0
// Helpers that let communication hooks (ddp/comm_hook.h) use torch's tensors.
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

// Returns the bucket's buffer as a tensor of one dimension. The tensor does not keep the memory alive: use the tensor
// only during the hook.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket);
// Returns the gradient of parameter `slice` of the bucket: a contiguous view of tensor_of(bucket) in the parameter's
// shape. If the parameter's own strides differ, the elements lie in the order of those strides.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket, std::size_t slice);

// Makes a hook that blocks. `run` gets tensor_of(bucket), which `run` may write, and returns the sum over the ranks, in
// a tensor with the bucket's number of elements, dtype and device. `run` may call any collectives of bucket.group, and
// runs without recording gradients. Buckets then overlap the computation of other ranks, but not each other; write a
// CommHook if the hook is to start its exchange and return. On a device torch's current stream waits instead of the
// host, and backward runs after that stream.
LOCKSTEP_API CommHook tensor_hook(std::string name,
                                  std::function<at::Tensor(const GradBucket& bucket, at::Tensor sum)> run);

}  // namespace lockstep::libtorch
