// SPDX-License-Identifier: Apache-2.0
// Checks of collectives on torch tensors, and how a tensor becomes memory that a group takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep::libtorch {

// One call on tensors: its name, with which it refuses tensors, and its group.
class CollectiveCall {
 public:
  // InvalidArgument if the group is null.
  CollectiveCall(std::string_view operation, const std::shared_ptr<ProcessGroup>& group);

  ProcessGroup& group() const { return *group_; }
  // Each throws InvalidArgument and has changed nothing. check(): a tensor that is read or written must be defined,
  // dense and on the group's device.
  void check(const at::Tensor& tensor) const;
  // No gradient is recorded that would be lost.
  void check_unrecorded(const at::Tensor& tensor) const;
  // May be written in place.
  void check_written(const at::Tensor& tensor) const;
  // Has a dtype that lockstep computes with.
  void check_computable(const at::Tensor& tensor) const;
  // Has rows (dimension 0) that the ranks divide.
  void check_divisible(const at::Tensor& tensor) const;
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  std::string_view operation_;
  const std::shared_ptr<ProcessGroup>& group_;
};

// "float32"; of a dtype that lockstep lacks torch's name.
std::string_view dtype_name(const at::Tensor& tensor);
// "float32 [3, 4] on cpu".
std::string describe(const at::Tensor& tensor);

// The tensor without its autograd history; an undefined one as it is.
inline at::Tensor values_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach() : tensor; }
// Values alone, in memory without gaps: the tensor's own where it has such.
at::Tensor dense_values(const at::Tensor& tensor);

}  // namespace lockstep::libtorch
