// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/tensor_bytes.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/libtorch/torch_stream.h"

namespace lockstep::libtorch {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    default: return std::nullopt;
  }
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return at::kFloat;
    case DType::f64: return at::kDouble;
    case DType::bf16: return at::kBFloat16;
    case DType::f16: return at::kHalf;
    case DType::i32: return at::kInt;
    case DType::i64: return at::kLong;
    case DType::u8: return at::kByte;
  }
  return at::kByte;
}

DType file_dtype(std::string_view operation, std::string_view name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta() || !tensor.has_storage()) {
    const std::string kind = tensor.defined() ? c10::str(tensor.layout(), " on ", tensor.device()) : "undefined";
    throw InvalidArgument(
        fmt::format("{}: '{}' is {}, but a file can hold only dense tensors that have memory; give a defined, dense "
                    "tensor with memory, or leave this tensor out",
                    operation, name, kind));
  }
  if (tensor.scalar_type() == at::kBool) return DType::u8;
  if (const auto dtype = dtype_of(tensor.scalar_type())) return *dtype;
  throw InvalidArgument(
      fmt::format("{}: '{}' is {}, which lockstep's files can't hold; convert it to float32, float64, bfloat16, "
                  "float16, int32, int64 or uint8 first",
                  operation, name, c10::toString(tensor.scalar_type())));
}

BufferView bytes_of(const at::Tensor& contiguous) {
  return {contiguous.data_ptr(), static_cast<std::int64_t>(contiguous.nbytes()), DType::u8,
          device_id_of(contiguous.device())};
}

BufferView elements_of(const at::Tensor& contiguous) {
  const auto dtype = dtype_of(contiguous.scalar_type());
  if (!dtype) return bytes_of(contiguous);
  return {contiguous.data_ptr(), contiguous.numel(), *dtype, device_id_of(contiguous.device())};
}

bool elements_share_memory(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride and size of each dimension with several elements
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) dims.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 1;  // of the dimensions before
  for (const auto& [stride, size] : dims) {
    if (stride < reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

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
