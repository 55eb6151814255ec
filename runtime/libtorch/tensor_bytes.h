// SPDX-License-Identifier: Apache-2.0
// A torch tensor in lockstep's own terms: memory, a dtype, a size.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/device/buffer_view.h"
#include "lockstep/snapshot/snapshots.h"

namespace lockstep::libtorch {

// lockstep's dtype; nullopt for those that it lacks: bool, complex, quantised. (bool is moved and saved as bytes.)
std::optional<DType> dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);
// The dtype in files: bool as U8. InvalidArgument, with `operation` and `name`, for a dtype that files lack, and for a
// tensor that is sparse or has no memory.
DType file_dtype(std::string_view operation, std::string_view name, const at::Tensor& tensor);

// The elements of a dense tensor that lie without gaps, as bytes: any dtype can be moved so. The tensor outlives the
// view. `contiguous` as at::Tensor::is_contiguous() says.
BufferView bytes_of(const at::Tensor& contiguous);
// bytes_of() as elements of lockstep's dtype if it has one, so that ranks can compare it; else as bytes.
BufferView elements_of(const at::Tensor& contiguous);

// Whether two elements lie in one place, as expand() makes them: such a tensor can't be written.
bool elements_share_memory(const at::Tensor& tensor);

// The tensor in its form in files: bool as U8. A tensor that is on a device, or not contiguous, is copied to host
// memory. InvalidArgument as from file_dtype().
SnapshotTensor saved_tensor(std::string name, const at::Tensor& tensor, bool only_optimizers_write);
// Into the tensor's own memory.
void read_into(SavedItem& saved, const std::string& name, const at::Tensor& tensor);

}  // namespace lockstep::libtorch
