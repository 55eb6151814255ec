// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/saved_tensor.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <memory>
#include <utility>

#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {

SnapshotTensor saved_tensor(std::string name, const at::Tensor& tensor, bool only_optimizers_write) {
  const at::NoGradGuard no_grad;
  const DType dtype = file_dtype("Snapshots", name, tensor);
  const bool lies_as_in_file = tensor.is_cpu() && tensor.is_contiguous();
  const at::Tensor host = lies_as_in_file ? tensor.detach() : tensor.detach().to(at::kCPU).contiguous();
  const BufferView view = bytes_of(host);
  std::function<std::uint64_t()> version;
  if (!tensor.is_inference())
    version = [tensor] { return static_cast<std::uint64_t>(tensor._version()); };  // else none
  return {.name = std::move(name),
          .dtype = dtype,
          .shape = tensor.sizes().vec(),
          .bytes = {static_cast<const std::byte*>(view.data), view.bytes()},
          .owner = std::make_shared<at::Tensor>(host),
          .is_copy = !lies_as_in_file,
          .only_optimizers_write = only_optimizers_write,
          .version = version};
}

void read_into(SavedItem& saved, const std::string& name, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor host = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
  const BufferView view = bytes_of(host);
  saved.read(name, {static_cast<std::byte*>(view.data), view.bytes()});
  tensor.detach().copy_(host);
}

}  // namespace lockstep::libtorch
