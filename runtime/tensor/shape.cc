// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep {

Shape::Shape(std::initializer_list<std::int64_t> extents)
    : Shape(std::span<const std::int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) : dims_(extents.size()) {
  if (dims_ > kMaxDims) {
    throw InvalidArgument(fmt::format(
        "shape [{}] has {} dimensions, and a tensor has at most {}; join dimensions that lie next to each other",
        fmt::join(extents, ", "), dims_, kMaxDims));
  }
  std::int64_t product = 1;
  for (std::size_t i = 0; i < dims_; ++i) {
    if (extents[i] < 0) {
      throw InvalidArgument(fmt::format(
          "shape [{}]: dimension {} is {}, and must be 0 or more; correct the size that was computed for it",
          fmt::join(extents, ", "), i, extents[i]));
    }
    extents_[i] = extents[i];
    // Extents of 0 are passed over: their neighbours must be sound by themselves.
    if (extents[i] > 0 && __builtin_mul_overflow(product, extents[i], &product)) {
      throw InvalidArgument(
          fmt::format("shape [{}] has more elements than 64 bits count; look for a size that was computed wrongly",
                      fmt::join(extents, ", ")));
    }
  }
}

std::int64_t Shape::count() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents()) product *= extent;
  return product;
}

std::int64_t Shape::operator[](std::int64_t dim) const {
  const auto dims = static_cast<std::int64_t>(dims_);
  const std::int64_t index = dim < 0 ? dim + dims : dim;
  if (index < 0 || index >= dims) {
    throw InvalidArgument(
        fmt::format("dimension {} was asked for, but the shape {} has {} dimensions; count dimensions from 0, or from "
                    "-1 for the last one",
                    dim, str(), dims));
  }
  return extents_[static_cast<std::size_t>(index)];
}

std::int64_t Shape::rows() const {
  std::int64_t product = 1;
  for (std::size_t i = 0; i + 1 < dims_; ++i) product *= extents_[i];
  return product;
}

Shape Shape::with_last(std::int64_t extent) const {
  if (dims_ == 0) throw InvalidArgument("a scalar has no last dimension");
  std::array<std::int64_t, kMaxDims> changed = extents_;
  changed[dims_ - 1] = extent;
  return Shape(std::span<const std::int64_t>(changed.data(), dims_));
}

Shape Shape::with_first(std::int64_t extent) const {
  if (dims_ == 0) throw InvalidArgument("a scalar has no first dimension");
  std::array<std::int64_t, kMaxDims> changed = extents_;
  changed[0] = extent;
  return Shape(std::span<const std::int64_t>(changed.data(), dims_));
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(extents(), ", ")); }

}  // namespace lockstep
