// Sentences that all stores share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/deadline.h"

namespace lockstep::store {

// "'a', 'b' and 7 more"
std::string list_keys(std::span<const std::string> keys);
// The Timeout of a wait for `keys`, of which `missing`, at least one, have not come.
[[noreturn]] void throw_wait_timeout(std::string_view store, std::span<const std::string> keys,
                                     std::span<const std::string> missing, const Deadline& deadline);
// InvalidArgument if multi_set got different numbers of keys and values.
void check_pairs(std::string_view store, std::size_t keys, std::size_t values);

}  // namespace lockstep::store
