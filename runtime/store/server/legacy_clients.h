// SPDX-License-Identifier: Apache-2.0
// LegacyClients knows, for each connected client of PyTorch 1.13 or 2.0, the keys that the client watches and the host
// from which the client connects.
//
// A legacy client (of PyTorch 1.13 or 2.0) opens a second connection, on which the server reports changes of the keys
// that the client watches. The second connection of a legacy client stays silent if the client watches no key. Only
// legacy clients have the operation WATCH_KEY. One thread uses a LegacyClients.
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

  // Adds the connection `client`, which came from `host` and was found to belong to a legacy client. REQUIRES: the
  // connection is not added yet.
  void add(ClientId client, const std::string& host);
  // Returns whether a legacy client from `host` is connected. If any_at() returns true, a silent connection from `host`
  // may be the second connection of a legacy client.
  bool any_at(const std::string& host) const { return clients_at_.contains(host); }
  // Makes a client watch `key`. Does nothing if the client watches `key` already. Throws StoreError if all clients
  // together would watch more than max_watches keys.
  void watch(ClientId client, std::string_view key);
  // Returns the clients that watch `key`, in the order in which the clients began to watch.
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
