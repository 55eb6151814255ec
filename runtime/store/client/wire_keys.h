// SPDX-License-Identifier: Apache-2.0
// These functions make the keys that a client of a TCP store puts on the wire.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

// The prefix that PyTorch's clients put before each key of their users; see proto/PROTOCOL.md.
inline constexpr char kKeyPrefix = '/';

// Returns the key as it goes over the wire. Throws InvalidArgument, which names the store, if the key is too long.
std::string wire_key(std::string_view store, std::string_view key);

// WireKeys holds several keys, and views of these keys. Throws InvalidArgument if one request can't take so many keys.
struct WireKeys {
  WireKeys(std::string_view store, std::span<const std::string> keys);
  WireKeys(const WireKeys&) = delete;
  WireKeys& operator=(const WireKeys&) = delete;

  std::span<const std::string> plain;
  std::vector<std::string> storage;
  std::vector<std::string_view> views;
};

}  // namespace lockstep::store
