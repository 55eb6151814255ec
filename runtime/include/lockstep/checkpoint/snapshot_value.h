// SPDX-License-Identifier: Apache-2.0
// Defines the named numbers and texts that a snapshot holds in addition to its tensors; the snapshot's file stores them
// as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::checkpoint {

using SnapshotValue = std::variant<bool, std::int64_t, std::uint64_t, double, std::string, std::vector<std::int64_t>,
                                   std::vector<double>, std::vector<std::string>>;
using SnapshotValues = std::map<std::string, SnapshotValue>;

// AtAnotherSize says how restore() treats a value that each rank saved separately, if the run resumes with a different
// number of ranks.
enum class AtAnotherSize : std::uint8_t {
  refuse,  // restore() throws InvalidArgument
  sum,     // rank 0 gets the sum over all ranks, and the other ranks get 0; only for numbers
  drop,    // every rank keeps its value
};

// get_bool() and the other get functions return the value with the given name; the value must have been saved with the
// type that the function returns. The get functions throw InvalidArgument if the value is missing, has another type, or
// is a number that does not fit into the result; the message holds the value found.
LOCKSTEP_API bool get_bool(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API std::int64_t get_int(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API std::uint64_t get_uint(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API double get_double(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API const std::string& get_text(const SnapshotValues& values, std::string_view name);
// get_ints(), get_doubles() and get_texts() return an empty list if the saved list is empty, even if the saved list has
// another element type.
LOCKSTEP_API std::vector<std::int64_t> get_ints(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API std::vector<double> get_doubles(const SnapshotValues& values, std::string_view name);
LOCKSTEP_API std::vector<std::string> get_texts(const SnapshotValues& values, std::string_view name);

}  // namespace lockstep::checkpoint
