// SPDX-License-Identifier: Apache-2.0
// The clients of PyTorch 1.13 and 2.0 at a server: the keys that they watch, and the hosts that they come from.
//
// Such a client opens a second connection, on which the server reports keys that it watches, and which stays silent if
// it watches none. Only these clients have the operation WATCH_KEY. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::store {

class LegacyClients {
 public:
  using ClientId = std::uint64_t;

  explicit LegacyClients(std::size_t max_watches) : max_watches_(max_watches) {}

  // Adds a connection from `host` that turned out to be such a client's, and was not added before.
  void add(ClientId client, const std::string& host);
  // True while a client that was added from `host` is connected: a silent connection from there may be its second.
  bool any_at(const std::string& host) const { return clients_at_.contains(host); }
  // Makes a client watch `key`; a second call does nothing. StoreError if all clients together would watch more keys
  // than the limit.
  void watch(ClientId client, std::string_view key);
  // The clients that watch `key`, in the order of their calls.
  std::vector<ClientId> watchers(std::string_view key) const;
  // Forgets a client; does nothing for another number.
  void forget(ClientId client);

 private:
  const std::size_t max_watches_;
  std::size_t watches_ = 0;
  std::unordered_map<std::string, std::vector<ClientId>> watchers_of_;  // by key
  std::unordered_map<ClientId, std::vector<std::string>> watched_by_;
  std::unordered_map<ClientId, std::string> host_of_;
  std::unordered_map<std::string, std::size_t> clients_at_;  // by host
};

}  // namespace lockstep::store
