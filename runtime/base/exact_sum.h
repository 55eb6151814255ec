// SPDX-License-Identifier: Apache-2.0
// Sums that are exact: numbers in fixed point, wide enough for every term, so that a sum depends neither on the order
// of its terms nor on which rank added which.
//
// A number is a span of digits of 32 bits, the lowest first, in integers of 64: many terms are added before a carry is
// due, and the digits of several numbers are added one by one, also by an all-reduce. The last digit has the sign.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::exact {

inline constexpr std::uint64_t kDigit = 0xffffffff;

// Adds mantissa * 2^place, in units of the lowest bit. A digit has room for 2^29 calls between two of carry().
inline void add(std::span<std::int64_t> digits, std::int64_t mantissa, std::size_t place) {
  const std::size_t at = place / 32, shift = place % 32;
  const bool is_negative = mantissa < 0;
  const std::uint64_t size = is_negative ? -static_cast<std::uint64_t>(mantissa) : static_cast<std::uint64_t>(mantissa);
  const std::uint64_t low = (size & kDigit) << shift, high = (size >> 32) << shift;
  const auto add_digit = [&](std::size_t i, std::uint64_t digit) {
    digits[i] += is_negative ? -static_cast<std::int64_t>(digit) : static_cast<std::int64_t>(digit);
  };
  add_digit(at, low & kDigit);
  add_digit(at + 1, (low >> 32) + (high & kDigit));
  add_digit(at + 2, high >> 32);
}

// Leaves 32 bits in each digit but the last.
inline void carry(std::span<std::int64_t> digits) {
  std::int64_t carried = 0;
  for (std::size_t i = 0; i + 1 < digits.size(); ++i) {
    const std::int64_t digit = digits[i] + carried;
    digits[i] = digit & static_cast<std::int64_t>(kDigit);
    carried = digit >> 32;
  }
  digits.back() += carried;
}

// The double that is nearest to digits * 2^lowest, where the two lowest digits are 0 and all digits are below 2^63. The
// digits are garbage afterwards.
inline double nearest(std::span<std::int64_t> digits, int lowest) {
  carry(digits);
  const bool is_negative = digits.back() < 0;
  if (is_negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry(digits);
  }
  const auto digit = [&](std::size_t i) { return static_cast<std::uint64_t>(digits[i]); };
  std::size_t top = digits.size() - 1;
  while (top > 1 && digit(top) == 0) --top;
  if (top == 1) return 0;
  // The 64 leading bits, of which the last one also says that some below them are set: the conversion rounds right.
  const std::uint64_t leading = digit(top) << 32 | digit(top - 1);
  const int shift = std::countl_zero(leading);
  std::uint64_t bits = leading << shift | (digit(top - 2) << shift) >> 32;
  bool is_more = ((digit(top - 2) << shift) & kDigit) != 0;
  for (std::size_t i = 0; i + 2 < top; ++i) is_more = is_more || digit(i) != 0;
  if (is_more) bits |= 1;
  const double size = std::ldexp(static_cast<double>(bits), lowest + 32 * static_cast<int>(top - 1) - shift);
  return is_negative ? -size : size;
}

}  // namespace lockstep::exact
