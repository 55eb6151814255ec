// SPDX-License-Identifier: Apache-2.0
// How a parameter begins.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"
#include "lockstep/base/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

struct LOCKSTEP_API Init {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  // The constant; the bound of a uniform on [-value, value); the standard deviation of a normal with mean 0.
  float value = 0;

  static constexpr Init zeros() { return {Kind::constant, 0}; }
  static constexpr Init ones() { return {Kind::constant, 1}; }
  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }
  // PyTorch's default for Linear, kaiming_uniform with a = sqrt(5): uniform with bound 1 / sqrt(fan_in), weight and
  // bias alike. He et al., arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in);
};

// Overwrites an f32 tensor. The numbers depend on the generator alone.
LOCKSTEP_API void initialize(const Tensor& tensor, const Init& init, Generator generator);

}  // namespace lockstep::nn
