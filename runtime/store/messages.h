// SPDX-License-Identifier: Apache-2.0
// The functions in this file check rules that all kinds of stores share, and throw errors that name the broken rule.
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
// Throws Timeout for a wait for `keys`. The error's message names the keys in `missing`, which is the part of `keys`
// that did not exist at the deadline. REQUIRES: `missing` is not empty.
[[noreturn]] void throw_wait_timeout(std::string_view store, std::span<const std::string> keys,
                                     std::span<const std::string> missing, const Deadline& deadline);
// Throws InvalidArgument if the key or the value exceeds the limits of store.h.
void check_sizes(std::string_view store, std::string_view key, std::string_view value);
// Returns the sum of `delta` and the decimal number in `value`. A null `value` counts as 0. Throws StoreError if
// `value` is not a decimal number, or if the sum does not fit into 64 bits.
std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta);
// Throws StoreError if appending `added` bytes to a value of `present` bytes would make the value longer than
// `limit` bytes.
void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit);
}  // namespace lockstep::store
