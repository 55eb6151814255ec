// SPDX-License-Identifier: Apache-2.0
// A torch tensor in a snapshot.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

// As files have it: bool as U8. One on a device, or not contiguous, is copied to the host here. InvalidArgument as
// file_dtype() has it.
SnapshotTensor saved_tensor(std::string name, const at::Tensor& tensor, bool only_optimizers_write);
// Into the tensor's own memory.
void read_into(SavedItem& saved, const std::string& name, const at::Tensor& tensor);

}  // namespace lockstep::libtorch
