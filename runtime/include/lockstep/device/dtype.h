// SPDX-License-Identifier: Apache-2.0
// Defines the element types of tensors and buffers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

// Returns the number of bytes per element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

// Returns PyTorch's name of a dtype: "float32", "bfloat16", ...
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::u8: return "uint8";
  }
  return "?";
}

// bfloat16 and float16 only store 16-bit floats. A program that computes with bfloat16 or float16 converts the values
// with to_float(), to_bfloat16() and to_float16().
struct bfloat16 {
  std::uint16_t bits = 0;
};
struct float16 {
  std::uint16_t bits = 0;
};

// Returns the DType of a C++ type; for example, dtype_of<float>() is DType::f32.
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<float16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

// The functions to_float(), to_bfloat16() and to_float16() convert 16-bit floats to float and back, rounded to nearest
// even. The conversion functions have no branches, so that compilers can vectorise loops over these functions.
//
// The conversions are right for every value, subnormals and infinities included; a NaN stays a NaN, but its payload may
// change. The source of the float16 conversions is https://gist.github.com/rygorous/2156668 (Fabian Giesen).

inline float to_float(bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(is_nan ? quiet_nan : rounded)};
}

inline float to_float(float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t normal = shifted + ((127u - 15u) << 23);
  const std::uint32_t special = normal + ((128u - 16u) << 23);
  // A number that is subnormal in float16 is normal in float; the subtraction normalises the number.
  const float subnormal = std::bit_cast<float>(shifted + (113u << 23)) - std::bit_cast<float>(113u << 23);
  const std::uint32_t finite = magnitude < 0x0400u ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

inline float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  constexpr std::uint32_t kTooLarge = (127u + 16u) << 23;
  constexpr std::uint32_t kSmallestNormal = 113u << 23;
  constexpr std::uint32_t kAligner = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  // Adding kAligner, which is 0.5 as a float, moves the ten remaining bits of the mantissa to the bottom and rounds the
  // lower bits off.
  const float aligned =
      std::bit_cast<float>(magnitude < kSmallestNormal ? magnitude : 0u) + std::bit_cast<float>(kAligner);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kAligner;
  const std::uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return {static_cast<std::uint16_t>(sign | (magnitude >= kTooLarge ? special : finite))};
}

}  // namespace lockstep
