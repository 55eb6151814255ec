// SPDX-License-Identifier: Apache-2.0
// Clients of PyTorch 1.13 and 2.0 at a server: the keys that they watch, and the hosts that they come from.
//
// Such a client opens a second connection, on which it is told of keys that it watches, and says nothing on it if it
// watches none. WATCH_KEY is an operation of theirs alone. One thread.
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

  // A connection from `host`, which was not added before, turned out to be of such a client.
  void add(ClientId client, const std::string& host);
  // True while a client that was added from `host` is connected: a silent connection from there may be its second.
  bool any_at(const std::string& host) const { return clients_at_.contains(host); }
  // Twice the same is once. StoreError if all clients together would watch more keys than the limit.
  void watch(ClientId client, std::string_view key);
  // The clients that watch `key`, in the order they came.
  std::vector<ClientId> watchers(std::string_view key) const;
  // Forgets a client; nothing if it isn't one.
  void forget(ClientId client);

 private:
  const std::size_t max_watches_;
  std::size_t watches_ = 0;
  std::unordered_map<std::string, std::vector<ClientId>> watchers_of_;  // a key
  std::unordered_map<ClientId, std::vector<std::string>> watched_by_;
  std::unordered_map<ClientId, std::string> host_of_;
  std::unordered_map<std::string, std::size_t> clients_at_;  // a host
};

}  // namespace lockstep::store
