// SPDX-License-Identifier: Apache-2.0
// Findings about a run's numbers, as a rank saw them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::trace {

// The numbers are in files.
enum class FindingKind : std::uint8_t {
  nan = 1,       // in a rank's own gradient, before it was added to the others'
  infinity = 2,  // as nan
  apart = 3,     // the replicas are not equal any more
};

struct Finding {
  static constexpr std::size_t kMostNameBytes = 31;

  FindingKind kind = FindingKind::nan;
  int rank = -1;               // whose numbers they are; -1: nobody can tell
  std::int64_t step = 0;       // of its Reducer
  std::string parameter = {};  // the first in the order of backward; of a long name the last bytes
  std::int64_t time = 0;       // ns of the rank's steady clock

  bool operator==(const Finding&) const = default;
};

// "NaN in rank 2's gradient of 'fc2.weight' in step 12", "replicas differ in step 200, from parameter 'fc1.bias' on:
// rank 2 differs".
std::string describe(const Finding& finding);
// "nan", "infinity", "apart".
std::string_view name_of(FindingKind kind);
// Nothing if the name is not one of them.
std::optional<FindingKind> finding_kind(std::string_view name);
// The name as it is kept: at most kMostNameBytes, "..r.3.attention.output.weight".
std::string kept_name(const std::string& parameter);

}  // namespace lockstep::trace
