// SPDX-License-Identifier: Apache-2.0
// A torch tensor in a snapshot.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

// The tensor in its form in files: bool as U8. A tensor that is on a device, or not contiguous, is copied to host
// memory. InvalidArgument as from file_dtype().
SnapshotTensor saved_tensor(std::string name, const at::Tensor& tensor, bool only_optimizers_write);
// Into the tensor's own memory.
void read_into(SavedItem& saved, const std::string& name, const at::Tensor& tensor);

}  // namespace lockstep::libtorch
