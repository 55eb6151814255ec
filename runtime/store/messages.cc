#include "runtime/store/messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/store/store.h"

namespace lockstep::store {

std::string quoted_keys(std::span<const std::string> keys) {
  constexpr std::size_t kListed = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kListed); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", keys[i]);
  }
  if (keys.size() > kListed) text += fmt::format(" and {} more", keys.size() - kListed);
  return text;
}

void throw_wait_timeout(std::string_view store, std::span<const std::string> keys, std::span<const std::string> missing,
                        const Deadline& deadline) {
  throw Timeout(
      fmt::format("store ({}): wait for {} keys timed out, {}; {} missing: {}; the rank that sets them has not "
                  "come so far, or has ended",
                  store, keys.size(), deadline.progress(), missing.size(), quoted_keys(missing)));
}

void throw_queue_timeout(std::string_view store, std::string_view queue, const Deadline& deadline) {
  throw Timeout(
      fmt::format("store ({}): wait for an item of queue '{}' timed out, {}; it is empty: who fills it has "
                  "not come so far, or has ended",
                  store, queue, deadline.progress()));
}

void throw_barrier_timeout(std::string_view store, std::string_view name, std::int64_t world_size,
                           std::span<const std::int64_t> missing, std::int64_t count, const Deadline& deadline) {
  std::string more;
  if (count > static_cast<std::int64_t>(missing.size())) {
    more = fmt::format(" and {} more", count - static_cast<std::int64_t>(missing.size()));
  }
  throw Timeout(
      fmt::format("store ({}): barrier '{}' of {} ranks timed out, {}; {} have not come: {}{}; look at what "
                  "they said last",
                  store, name, world_size, deadline.progress(), count, fmt::join(missing, ", "), more));
}

void check_sizes(std::string_view store, std::string_view key, std::string_view value) {
  if (key.size() > kMaxKeyBytes) {
    throw InvalidArgument(fmt::format("store ({}): a key of {} bytes ('{}...'); at most {} are possible", store,
                                      key.size(), key.substr(0, 32), kMaxKeyBytes));
  }
  if (value.size() > kMaxValueBytes) {
    throw InvalidArgument(fmt::format("store ({}): a value of {} bytes for key '{}'; at most {} are possible: split it",
                                      store, value.size(), key, kMaxValueBytes));
  }
}

std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta) {
  std::int64_t sum = 0;
  if (value != nullptr) {
    const auto current = parse_int(*value);
    if (!current) {
      throw StoreError(fmt::format("store ({}): add to key '{}': its value of {} bytes is not a decimal number", store,
                                   key, value->size()));
    }
    sum = *current;
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    throw StoreError(fmt::format("store ({}): add of {} to key '{}': the sum does not fit 64 bits", store, delta, key));
  }
  return sum;
}

void check_rank(std::string_view store, std::string_view name, std::int64_t rank, std::int64_t world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw InvalidArgument(
      fmt::format("store ({}): barrier '{}': rank {} is not in a world of {} ranks", store, name, rank, world_size));
}

void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit) {
  if (present + added <= limit) return;
  throw StoreError(
      fmt::format("store ({}): append of {} bytes to the {} at key '{}'; a value has at most {} bytes: use "
                  "several keys",
                  store, added, present, key, limit));
}

void check_pairs(std::string_view store, std::size_t keys, std::size_t values) {
  if (keys == values) return;
  throw InvalidArgument(
      fmt::format("store ({}): multi_set got {} keys and {} values; give one value per key", store, keys, values));
}

}  // namespace lockstep::store
