// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/messages.h"

#include <fmt/format.h>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "runtime/base/text.h"

namespace lockstep::store {

std::string quoted_keys(std::span<const std::string> keys) {
  constexpr std::size_t kListed = 16;
  return joined(
      keys, [](const std::string& key) { return "'" + key + "'"; }, ", ", kListed);
}

void throw_wait_timeout(std::string_view store, std::span<const std::string> keys, std::span<const std::string> missing,
                        const Deadline& deadline) {
  throw Timeout(
      fmt::format("store ({}): wait for {} keys timed out, {}; {} missing: {}; look at the output of the rank that "
                  "should set them, which is late or has ended",
                  store, keys.size(), deadline.progress(), missing.size(), quoted_keys(missing)));
}

void check_sizes(std::string_view store, std::string_view key, std::string_view value) {
  if (key.size() > kMaxKeyBytes) {
    throw InvalidArgument(
        fmt::format("store ({}): a key of {} bytes ('{}...') is too long; at most {} are possible: give a shorter key",
                    store, key.size(), key.substr(0, 32), kMaxKeyBytes));
  }
  if (value.size() > kMaxValueBytes) {
    throw InvalidArgument(fmt::format(
        "store ({}): a value of {} bytes for key '{}' is too long; at most {} are possible: split the value", store,
        value.size(), key, kMaxValueBytes));
  }
}

std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta) {
  std::int64_t sum = 0;
  if (value != nullptr) {
    const auto current = parse_int(*value);
    if (!current) {
      throw StoreError(fmt::format(
          "store ({}): add to key '{}': the key's value of {} bytes is not a decimal number; use another key", store,
          key, value->size()));
    }
    sum = *current;
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    throw StoreError(fmt::format("store ({}): add of {} to key '{}': the sum does not fit 64 bits; use another key",
                                 store, delta, key));
  }
  return sum;
}

void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit) {
  if (present + added <= limit) return;
  throw StoreError(
      fmt::format("store ({}): append of {} bytes to the {} bytes at key '{}' is too much; a value has at most {} "
                  "bytes: use several keys",
                  store, added, present, key, limit));
}

}  // namespace lockstep::store
