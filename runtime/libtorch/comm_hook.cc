// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/comm_hook.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// A hook's result, in a form that can be read. The Reducer checks its size and dtype.
at::Tensor readable(const at::Tensor& sum) {
  if (!sum.defined()) throw InvalidArgument("the hook returned an undefined tensor; return the sum over the ranks");
  if (!dtype_of(sum.scalar_type())) {
    throw InvalidArgument(
        fmt::format("the hook returned a tensor of {}, which can't be averaged; return a tensor of the bucket's dtype",
                    c10::toString(sum.scalar_type())));
  }
  return sum.contiguous();
}

}  // namespace

at::Tensor tensor_of(const GradBucket& bucket) {
  const at::Device device = device_of(*bucket.group);
  const auto options = at::TensorOptions().dtype(scalar_type_of(bucket.buffer.dtype)).device(device);
  return at::from_blob(
      bucket.buffer.data, {bucket.buffer.count}, {1}, [](void*) {}, options, device);
}

at::Tensor tensor_of(const GradBucket& bucket, std::size_t slice) {
  if (slice >= bucket.slices.size()) {
    throw InvalidArgument(
        fmt::format("tensor_of: bucket {} has no slice {}; the bucket has {} slices, counted from 0: give an index of "
                    "bucket.slices",
                    bucket.index, slice, bucket.slices.size()));
  }
  const GradBucket::Slice& it = bucket.slices[slice];
  return tensor_of(bucket).narrow(0, it.offset, it.parameter.count()).view(it.parameter.shape);
}

CommHook tensor_hook(std::string name, std::function<at::Tensor(const GradBucket& bucket, at::Tensor sum)> run) {
  if (!run) return {std::move(name), nullptr};
  return {std::move(name), [run = std::move(run)](const GradBucket& bucket) -> HookedBucket {
            const at::NoGradGuard no_grad;
            const StreamView of_group = bucket.group->stream();
            const StreamView of_torch = current_stream(of_group.device);
            put_in_order(of_group, of_torch);
            at::Tensor sum = readable(run(bucket, tensor_of(bucket)));
            // Torch's allocator may give memory that is let go of to another stream's work at once.
            const at::Tensor whole = tensor_of(bucket);
            if (whole.is_cpu() || sum.dtype() != whole.dtype() || sum.numel() != whole.numel()) {
              return {.finish = [sum = std::move(sum)] { return elements_of(sum); }};
            }
            whole.copy_(sum.view(-1));
            put_in_order(of_torch, of_group);
            return {};
          }};
}

}  // namespace lockstep::libtorch
