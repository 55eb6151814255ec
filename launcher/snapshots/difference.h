// SPDX-License-Identifier: Apache-2.0
// The items, values and tensors in which two snapshots differ, and the size of the differences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::launcher::snapshots {

// The difference of two tensors of one dtype and shape.
struct TensorDifference {
  std::string item;
  std::string name;
  std::uint64_t elements = 0;
  std::uint64_t different = 0;  // number of elements whose bits differ
  std::uint64_t nans = 0;       // number of those in which one or both values are NaN
  double largest = 0;           // |a - b| without NaNs; infinity if only one value is infinite
};

struct ValueDifference {
  std::string item;
  std::string name;  // "steps"; for per-rank values "rank 1: value"
  std::string a, b;  // as JSON; empty: the value is absent
};

struct Difference {
  std::filesystem::path a, b;
  std::vector<std::string> structure = {};  // names that only one snapshot has, or that have different types
  std::vector<ValueDifference> values = {};
  std::vector<TensorDifference> tensors = {};  // those that differ
  std::uint64_t equal_tensors = 0;

  bool is_equal() const { return structure.empty() && values.empty() && tensors.empty(); }
};

// Reads every byte of both. Throws InvalidArgument if one is not a snapshot, CorruptData if one is damaged.
Difference compare(const std::filesystem::path& a, const std::filesystem::path& b);
// `a` and `b` are row-major bytes of equal length, a multiple of the dtype's size.
TensorDifference compare_tensors(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b);
std::string as_text(const Difference& difference);
std::string as_json(const Difference& difference);

}  // namespace lockstep::launcher::snapshots
