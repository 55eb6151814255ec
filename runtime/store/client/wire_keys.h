// SPDX-License-Identifier: Apache-2.0
// Keys as a client of a TCP store puts them on the wire.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

// The prefix that PyTorch's clients put before each key of their users; see proto/PROTOCOL.md.
inline constexpr char kKeyPrefix = '/';

// The key as it goes over the wire. InvalidArgument, naming the store, if it is too long.
std::string wire_key(std::string_view store, std::string_view key);

// Several keys, and views of them. InvalidArgument if they are more than one request takes.
struct WireKeys {
  WireKeys(std::string_view store, std::span<const std::string> keys);
  WireKeys(const WireKeys&) = delete;
  WireKeys& operator=(const WireKeys&) = delete;

  std::span<const std::string> plain;
  std::vector<std::string> storage;
  std::vector<std::string_view> views;
};

}  // namespace lockstep::store
