// SPDX-License-Identifier: Apache-2.0
// Helpers for communication hooks (ddp/comm_hook.h) that use torch's tensors.
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

// The bucket's buffer as a tensor of one dimension. It does not keep the memory: use it only during the hook.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket);
// The gradient of one of the bucket's parameters, a view of tensor_of(bucket), in the parameter's shape, contiguous. If
// the parameter's own strides differ, the elements lie in the order of those strides.
LOCKSTEP_API at::Tensor tensor_of(const GradBucket& bucket, std::size_t slice);

// A hook that blocks. `run` gets tensor_of(bucket), which it may write, and returns the sum over the ranks, of as many
// elements of the same dtype on the same device; it may call any collectives of bucket.group. It runs without recording
// gradients. Buckets then overlap the computation of other ranks, but not each other: write a CommHook if the hook is
// to start its exchange and return. On a device torch's current stream waits instead of the host, and backward after
// it.
LOCKSTEP_API CommHook tensor_hook(std::string name,
                                  std::function<at::Tensor(const GradBucket& bucket, at::Tensor sum)> run);

}  // namespace lockstep::libtorch
