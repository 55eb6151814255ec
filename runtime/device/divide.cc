// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/divide.h"

#include <cstring>

#include "lockstep/device/dtype.h"

namespace lockstep {
namespace {

template <typename T, typename Quotient>
void each(void* data, std::int64_t count, const Quotient& quotient) {
  auto* const values = static_cast<T*>(data);
  for (std::int64_t i = 0; i < count; ++i) values[i] = quotient(values[i]);
}

template <typename T>
void integers(void* data, std::int64_t count, std::int64_t divisor) {
  // -2^63 over -1 does not fit; as two's complement it is itself.
  if (divisor == -1) {
    each<T>(data, count, [](T value) { return static_cast<T>(0 - static_cast<std::uint64_t>(value)); });
  } else {
    each<T>(data, count, [divisor](T value) { return static_cast<T>(static_cast<std::int64_t>(value) / divisor); });
  }
}

}  // namespace

void divide_on_host(void* data, std::int64_t count, DType dtype, std::int64_t divisor, OverZero over_zero,
                    double factor) {
  if (divisor == 0) {
    if (over_zero == OverZero::is_zero && count > 0)
      std::memset(data, 0, static_cast<std::size_t>(count) * size_of(dtype));
    return;
  }
  const auto single = [by = static_cast<float>(divisor), times = static_cast<float>(factor)](float value) {
    return value * times / by;
  };
  switch (dtype) {
    case DType::f32: each<float>(data, count, single); break;
    case DType::f64:
      each<double>(data, count, [=](double value) { return value * factor / static_cast<double>(divisor); });
      break;
    case DType::bf16:
      each<bfloat16>(data, count, [&](bfloat16 value) { return to_bfloat16(single(to_float(value))); });
      break;
    case DType::f16:
      each<float16>(data, count, [&](float16 value) { return to_float16(single(to_float(value))); });
      break;
    case DType::i32: integers<std::int32_t>(data, count, divisor); break;
    case DType::i64: integers<std::int64_t>(data, count, divisor); break;
    case DType::u8: integers<std::uint8_t>(data, count, divisor); break;
  }
}

}  // namespace lockstep
