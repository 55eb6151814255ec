#include "runtime/store/messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace lockstep::store {

std::string list_keys(std::span<const std::string> keys) {
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
                  store, keys.size(), deadline.progress(), missing.size(), list_keys(missing)));
}

void check_pairs(std::string_view store, std::size_t keys, std::size_t values) {
  if (keys == values) return;
  throw InvalidArgument(
      fmt::format("store ({}): multi_set got {} keys and {} values; give one value per key", store, keys, values));
}

}  // namespace lockstep::store
