#include "runtime/libtorch/tensor_bytes.h"

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

BufferView bytes_of(const at::Tensor& contiguous) {
  return {contiguous.data_ptr(), static_cast<std::int64_t>(contiguous.nbytes()), DType::u8,
          device_id_of(contiguous.device())};
}

}  // namespace lockstep::libtorch
