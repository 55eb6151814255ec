// SPDX-License-Identifier: Apache-2.0
// These functions check rules that all stores share, and write the messages that say which rule was broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"

namespace lockstep::store {

// Returns a text for messages: "'a', 'b' and 7 more".
std::string quoted_keys(std::span<const std::string> keys);
// Throws the Timeout of a wait for `keys`, of which the keys `missing` (at least one key) did not arrive.
[[noreturn]] void throw_wait_timeout(std::string_view store, std::span<const std::string> keys,
                                     std::span<const std::string> missing, const Deadline& deadline);
// Throws InvalidArgument if the key or the value exceeds the limits of store.h.
void check_sizes(std::string_view store, std::string_view key, std::string_view value);
// Returns the sum of `delta` and the decimal number in `value`. A null `value` counts as 0. Throws StoreError if the
// value is not a number, or if the sum doesn't fit.
std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta);
// Throws StoreError if a value of `present` bytes must not grow by `added` bytes.
void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit);
}  // namespace lockstep::store
