// SPDX-License-Identifier: Apache-2.0
// The functions in this file make the keys that a client of a TCP store sends to the server.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

// The prefix that PyTorch's clients put before each key of a user (see proto/PROTOCOL.md).
inline constexpr char kKeyPrefix = '/';

// Returns `key` with the prefix kKeyPrefix, as a client sends the key. If the key is too long, throws InvalidArgument
// with a message that names the store.
std::string wire_key(std::string_view store, std::string_view key);

// WireKeys holds several keys with their prefix, and views of the prefixed keys. The constructor throws InvalidArgument
// if `keys` has more keys than one request may have.
struct WireKeys {
  WireKeys(std::string_view store, std::span<const std::string> keys);
  WireKeys(const WireKeys&) = delete;
  WireKeys& operator=(const WireKeys&) = delete;

  std::span<const std::string> plain;
  std::vector<std::string> storage;
  std::vector<std::string_view> views;
};

}  // namespace lockstep::store
