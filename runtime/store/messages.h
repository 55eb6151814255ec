// SPDX-License-Identifier: Apache-2.0
// Rules that all stores share, and the sentences that say they were broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"

namespace lockstep::store {

// "'a', 'b' and 7 more"
std::string quoted_keys(std::span<const std::string> keys);
// The Timeout of a wait for `keys`, of which `missing`, at least one, have not come.
[[noreturn]] void throw_wait_timeout(std::string_view store, std::span<const std::string> keys,
                                     std::span<const std::string> missing, const Deadline& deadline);
// InvalidArgument if the key or the value is over the limits of store.h.
void check_sizes(std::string_view store, std::string_view key, std::string_view value);
// The sum of `delta` and the decimal number at `key`; null counts as 0. StoreError if it is not a number, or doesn't
// fit.
std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta);
// StoreError if a value of `present` bytes must not grow by `added`.
void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit);
}  // namespace lockstep::store
