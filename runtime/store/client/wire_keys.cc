// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client/wire_keys.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "proto/protocol.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

constexpr proto::Limits kKeyLimits;

static_assert(kMaxKeyBytes + 1 == kKeyLimits.max_key_bytes && kMaxValueBytes == kKeyLimits.max_value_bytes);

}  // namespace

std::string wire_key(std::string_view store, std::string_view key) {
  check_sizes(store, key, {});
  std::string result(1, kKeyPrefix);
  result += key;
  return result;
}

WireKeys::WireKeys(std::string_view store, std::span<const std::string> keys) : plain(keys) {
  if (keys.size() > kKeyLimits.max_count) {
    throw InvalidArgument(fmt::format("store ({}): one call has {} keys, and at most {} are possible; split the call",
                                      store, keys.size(), kKeyLimits.max_count));
  }
  storage.reserve(keys.size());
  for (const std::string& key : keys) storage.push_back(wire_key(store, key));
  views.assign(storage.begin(), storage.end());
}

}  // namespace lockstep::store
