// Rules that all stores share, and the sentences that say they were broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"

namespace lockstep::store {

// "'a', 'b' and 7 more"
std::string quoted_keys(std::span<const std::string> keys);
// The Timeout of a wait for `keys`, of which `missing`, at least one, have not come.
[[noreturn]] void throw_wait_timeout(std::string_view store, std::span<const std::string> keys,
                                     std::span<const std::string> missing, const Deadline& deadline);
// The Timeout of a wait for an item of `queue`.
[[noreturn]] void throw_queue_timeout(std::string_view store, std::string_view queue, const Deadline& deadline);
// The Timeout of a barrier that `count` ranks have not come to, of which `missing` are the first.
[[noreturn]] void throw_barrier_timeout(std::string_view store, std::string_view name, std::int64_t world_size,
                                        std::span<const std::int64_t> missing, std::int64_t count,
                                        const Deadline& deadline);
// InvalidArgument if the key or the value is over the limits of store.h.
void check_sizes(std::string_view store, std::string_view key, std::string_view value);
// The sum of `delta` and the decimal number at `key`; null counts as 0. StoreError if it is no number, or doesn't fit.
std::int64_t add_to_value(std::string_view store, std::string_view key, const std::string* value, std::int64_t delta);
// InvalidArgument if there is no such rank to come to a barrier.
void check_rank(std::string_view store, std::string_view name, std::int64_t rank, std::int64_t world_size);
// StoreError if a value of `present` bytes must not grow by `added`.
void check_append(std::string_view store, std::string_view key, std::size_t present, std::size_t added,
                  std::size_t limit);
// InvalidArgument if multi_set got different numbers of keys and values.
void check_pairs(std::string_view store, std::size_t keys, std::size_t values);

}  // namespace lockstep::store
