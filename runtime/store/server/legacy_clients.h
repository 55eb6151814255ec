// SPDX-License-Identifier: Apache-2.0
// LegacyClients knows the clients of PyTorch 1.13 and 2.0 at a server: the keys that they watch, and the hosts that
// they come from.
//
// A legacy client opens a second connection, on which the server reports the keys that the client watches. The second
// connection stays silent if the client watches no key. Only legacy clients have the operation WATCH_KEY. One thread
// uses a LegacyClients.
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

  // Adds a connection from `host` that turned out to be a legacy client's. REQUIRES: the connection is not added yet.
  void add(ClientId client, const std::string& host);
  // Returns true while a client that was added from `host` is connected. A silent connection from `host` may be that
  // client's second connection.
  bool any_at(const std::string& host) const { return clients_at_.contains(host); }
  // Makes a client watch `key`. Does nothing if the client watches `key` already. Throws StoreError if all clients
  // together would watch more keys than the limit.
  void watch(ClientId client, std::string_view key);
  // Returns the clients that watch `key`, in the order of their calls of watch().
  std::vector<ClientId> watchers(std::string_view key) const;
  // Forgets a client. Does nothing for an unknown number.
  void forget(ClientId client);

 private:
  const std::size_t max_watches_;
  std::size_t watches_ = 0;
  std::unordered_map<std::string, std::vector<ClientId>> watchers_of_;  // by key: the clients that watch the key
  std::unordered_map<ClientId, std::vector<std::string>> watched_by_;
  std::unordered_map<ClientId, std::string> host_of_;
  std::unordered_map<std::string, std::size_t> clients_at_;  // by host: the number of clients
};

}  // namespace lockstep::store
