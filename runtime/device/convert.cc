// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/convert.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/device/half_arrays.h"

namespace lockstep {
namespace {

bfloat16 rounded(float value, bfloat16) { return to_bfloat16(value); }
float16 rounded(float value, float16) { return to_float16(value); }

template <typename Wide, typename Half>
void narrow(const Wide* from, Half* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = rounded(static_cast<float>(from[i]), Half{});
}
void narrow(const float* from, float16* to, std::size_t count) { to_float16s(from, to, count); }
template <typename Wide, typename Half>
void widen(const Half* from, Wide* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
void widen(const float16* from, float* to, std::size_t count) { to_floats(from, to, count); }

template <typename Wide, typename Half>
void convert_as(const ConstBufferView& from, const BufferView& to) {
  const auto count = static_cast<std::size_t>(to.count);
  if (from.dtype == dtype_of<Wide>())
    return narrow(static_cast<const Wide*>(from.data), static_cast<Half*>(to.data), count);
  widen(static_cast<const Half*>(from.data), static_cast<Wide*>(to.data), count);
}

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }
bool is_wide(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

}  // namespace

void check_convertible(const ConstBufferView& from, const BufferView& to) {
  const bool fits = (is_wide(from.dtype) && is_half(to.dtype)) || (is_half(from.dtype) && is_wide(to.dtype));
  if (fits && from.count == to.count) return;
  throw InvalidArgument(
      fmt::format("convert of {} {} to {} {}; give as many elements on both sides, of float32 or float64 on one side "
                  "and of 16 bits on the other",
                  from.count, name_of(from.dtype), to.count, name_of(to.dtype)));
}

void convert_on_host(const ConstBufferView& from, const BufferView& to) {
  check_convertible(from, to);
  const DType half = is_half(from.dtype) ? from.dtype : to.dtype;
  const DType wide = is_half(from.dtype) ? to.dtype : from.dtype;
  if (half == DType::bf16) {
    wide == DType::f32 ? convert_as<float, bfloat16>(from, to) : convert_as<double, bfloat16>(from, to);
  } else {
    wide == DType::f32 ? convert_as<float, float16>(from, to) : convert_as<double, float16>(from, to);
  }
}

}  // namespace lockstep
