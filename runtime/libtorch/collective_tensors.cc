// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/collective_tensors.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {

CollectiveCall::CollectiveCall(std::string_view operation, const std::shared_ptr<ProcessGroup>& group)
    : operation_(operation), group_(group) {
  if (group) return;
  throw InvalidArgument(fmt::format("{}: the process group is null; pass what init_process_group returned", operation));
}

void CollectiveCall::refuse(std::string_view what) const {
  throw InvalidArgument(
      fmt::format("{} on rank {} of {} ({}): {}", operation_, group_->rank(), group_->size(), group_->backend(), what));
}

void CollectiveCall::check(const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    refuse("the tensor is undefined; give a tensor, of 0 elements if this rank has none");
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse(fmt::format("the tensor is {}, and must be dense; give its {}", describe(tensor),
                       tensor.is_quantized() ? "dequantize()" : "to_dense()"));
  }
  if (is_at_home(*group_, tensor.device())) return;
  refuse(
      fmt::format("the tensor is on {}, and the group computes on {}; move the tensor with "
                  "tensor.to(lockstep::libtorch::device_of(*group)), or take a group on the tensor's device, by "
                  "InitOptions::device or LOCKSTEP_DEVICE",
                  tensor.device().str(), group_->device().str()));
}

void CollectiveCall::check_unrecorded(const at::Tensor& tensor) const {
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) return;
  refuse(
      fmt::format("the tensor, {}, requires a gradient, which would not come back through this call; pass "
                  "tensor.detach(), or call the function without _async where it has a backward",
                  describe(tensor)));
}

void CollectiveCall::check_written(const at::Tensor& tensor) const {
  if (at::GradMode::is_enabled() && tensor.requires_grad()) {
    refuse(fmt::format(
        "the tensor, {}, requires a gradient, and would be written in place; write it under a torch::NoGradGuard, or "
        "call all_reduced or all_gather, which return a new tensor and have a backward",
        describe(tensor)));
  }
  if (!elements_share_memory(tensor)) return;
  refuse(
      fmt::format("the tensor of sizes [{}] and strides [{}] has elements that share memory, as expand() makes "
                  "them, and can't be written; give its clone(at::MemoryFormat::Contiguous)",
                  fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")));
}

void CollectiveCall::check_computable(const at::Tensor& tensor) const {
  if (dtype_of(tensor.scalar_type())) return;
  const char* remedy = "tensor.to(torch::kInt)";
  if (tensor.is_complex()) remedy = "torch::view_as_real(tensor), which shares its memory";
  refuse(
      fmt::format("the tensor is {}, which lockstep can't compute with: only with float32, float64, bfloat16, "
                  "float16, int32, int64 and uint8; give {}",
                  describe(tensor), remedy));
}

void CollectiveCall::check_divisible(const at::Tensor& tensor) const {
  if (tensor.dim() > 0 && tensor.size(0) % group_->size() == 0) return;
  refuse(
      fmt::format("the tensor is {}, and its dimension 0 must hold {} equal parts, one for each rank; give a size that "
                  "the number of ranks divides",
                  describe(tensor), group_->size()));
}

std::string_view dtype_name(const at::Tensor& tensor) {
  const auto dtype = dtype_of(tensor.scalar_type());
  return dtype ? name_of(*dtype) : std::string_view(c10::toString(tensor.scalar_type()));
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{}{} [{}] on {}", tensor.layout() == at::kStrided ? "" : "sparse ", dtype_name(tensor),
                     fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

at::Tensor dense_values(const at::Tensor& tensor) { return tensor.detach().resolve_conj().resolve_neg().contiguous(); }

}  // namespace lockstep::libtorch
