// SPDX-License-Identifier: Apache-2.0
// The extents of a tensor: a small value, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

// Row-major extents, outermost first. An extent may be 0: a batch without rows is legal everywhere. No extents at all
// is a scalar of one element.
class LOCKSTEP_API Shape {
 public:
  static constexpr std::size_t kMaxDims = 6;

  Shape() = default;
  // InvalidArgument if there are more than kMaxDims extents, one is negative, or their product overflows.
  Shape(std::initializer_list<std::int64_t> extents);  // NOLINT(google-explicit-constructor): {30, 5} is a shape
  explicit Shape(std::span<const std::int64_t> extents);

  std::size_t dims() const { return dims_; }
  // Product of the extents; 1 for a scalar.
  std::int64_t count() const;
  // Extent of a dimension; negative ones count from the end. InvalidArgument if there is no such dimension.
  std::int64_t operator[](std::int64_t dim) const;
  // Elements over all dimensions but the last (the rows of a matrix of many rows); 1 for a scalar.
  std::int64_t rows() const;
  // Extent of the last dimension; 1 for a scalar.
  std::int64_t columns() const { return dims_ == 0 ? 1 : extents_[dims_ - 1]; }
  // The same with another last, or another first, extent. InvalidArgument for a scalar, and as the constructor.
  Shape with_last(std::int64_t extent) const;
  Shape with_first(std::int64_t extent) const;
  std::span<const std::int64_t> extents() const { return {extents_.data(), dims_}; }

  friend bool operator==(const Shape& a, const Shape& b) = default;
  // "[30, 5]", as PyTorch prints a size.
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxDims> extents_{};  // unused ones stay 0, so that == may compare all
  std::size_t dims_ = 0;
};

}  // namespace lockstep
