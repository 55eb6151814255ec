// SPDX-License-Identifier: Apache-2.0
// A number is not finite if all bits of its exponent are set: one more in the exponent's lowest bit then carries into
// the sign, which was cleared. That is three operations of the widest vectors that the processor has, for any width
// of the numbers.
#include "runtime/device/not_finite.h"

#include <algorithm>
#include <bit>

#include "runtime/base/clones.h"

namespace lockstep {
namespace {

// Numbers looked at before it is asked whether one was found.
constexpr std::int64_t kBlock = 8192;

template <typename Bits>
struct Format {
  Bits exponent;  // its bits
  Bits one;       // the lowest of them

  Bits carry(Bits number) const { return static_cast<Bits>((number & exponent) + one); }
  bool has_carried(Bits carries) const { return (carries >> (8 * sizeof(Bits) - 1)) != 0; }
  bool is_infinite(Bits number) const { return (number & static_cast<Bits>(one - 1)) == 0; }
};

template <typename Bits>
LOCKSTEP_VECTOR_CLONES bool has_one(const Bits* numbers, std::int64_t count, Bits exponent, Bits one) {
  Bits carries = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    carries = static_cast<Bits>(carries | static_cast<Bits>((numbers[i] & exponent) + one));
  }
  return Format<Bits>{exponent, one}.has_carried(carries);
}

template <typename Bits>
std::int64_t first_of(const void* data, std::int64_t count, Format<Bits> format) {
  const auto* const numbers = static_cast<const Bits*>(data);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    if (!has_one(numbers + begin, end - begin, format.exponent, format.one)) continue;
    const auto* const first = std::find_if(numbers + begin, numbers + end,
                                           [&](Bits number) { return format.has_carried(format.carry(number)); });
    return 2 * (first - numbers) + (format.is_infinite(*first) ? 1 : 0);
  }
  return kAllFinite;
}

template <typename T, typename Bits>
LOCKSTEP_VECTOR_CLONES bool multiply(T* to, const T* from, std::int64_t count, T factor, Bits exponent, Bits one) {
  Bits carries = 0;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) {
    const T product = from[i] * factor;
    to[i] = product;
    carries = static_cast<Bits>(carries | static_cast<Bits>((std::bit_cast<Bits>(product) & exponent) + one));
  }
  return !Format<Bits>{exponent, one}.has_carried(carries);
}

// As integers, magnitudes have the order of the numbers: the finite ones, then infinity, then NaN.
template <typename Bits>
LOCKSTEP_VECTOR_CLONES Bits largest_of(const Bits* numbers, std::int64_t count, Bits magnitude) {
  Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Bits>(numbers[i] & magnitude));
  return largest;
}

constexpr Format<std::uint32_t> kFloat32{0x7f80'0000, 0x0080'0000};
constexpr Format<std::uint64_t> kFloat64{0x7ff0'0000'0000'0000, 0x0010'0000'0000'0000};

}  // namespace

std::int64_t first_not_finite_on_host(const void* data, std::int64_t count, DType dtype) {
  switch (dtype) {
    case DType::f32: return first_of<std::uint32_t>(data, count, kFloat32);
    case DType::f64: return first_of<std::uint64_t>(data, count, kFloat64);
    case DType::bf16: return first_of<std::uint16_t>(data, count, {0x7f80, 0x0080});
    case DType::f16: return first_of<std::uint16_t>(data, count, {0x7c00, 0x0400});
    case DType::i32:
    case DType::i64:
    case DType::u8: return kAllFinite;
  }
  return kAllFinite;
}

bool write_product(void* to, const void* from, std::int64_t count, DType dtype, double factor) {
  if (dtype == DType::f64) {
    return multiply(static_cast<double*>(to), static_cast<const double*>(from), count, factor, kFloat64.exponent,
                    kFloat64.one);
  }
  return multiply(static_cast<float*>(to), static_cast<const float*>(from), count, static_cast<float>(factor),
                  kFloat32.exponent, kFloat32.one);
}

double largest_magnitude(const void* data, std::int64_t count, DType dtype) {
  if (dtype == DType::f64) {
    return std::bit_cast<double>(largest_of(static_cast<const std::uint64_t*>(data), count, ~std::uint64_t{0} >> 1));
  }
  return std::bit_cast<float>(largest_of(static_cast<const std::uint32_t*>(data), count, ~std::uint32_t{0} >> 1));
}

}  // namespace lockstep
