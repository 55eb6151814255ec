// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/legacy_clients.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::store {

void LegacyClients::add(ClientId client, const std::string& host) {
  host_of_[client] = host;
  ++clients_at_[host];
}

void LegacyClients::watch(ClientId client, std::string_view key) {
  const std::vector<ClientId> present = watchers(key);
  if (std::ranges::find(present, client) != present.end()) return;
  if (watches_ >= max_watches_) {
    throw StoreError(fmt::format(
        "WATCH_KEY '{}': clients of this store watch {} keys already, and the limit is {}; watch fewer keys", key,
        watches_, max_watches_));
  }
  watchers_of_[std::string(key)].push_back(client);
  watched_by_[client].emplace_back(key);
  ++watches_;
}

std::vector<LegacyClients::ClientId> LegacyClients::watchers(std::string_view key) const {
  if (watchers_of_.empty()) return {};
  const auto found = watchers_of_.find(std::string(key));
  return found == watchers_of_.end() ? std::vector<ClientId>() : found->second;
}

void LegacyClients::forget(ClientId client) {
  if (const auto host = host_of_.find(client); host != host_of_.end()) {
    const auto place = clients_at_.find(host->second);
    if (--place->second == 0) clients_at_.erase(place);
    host_of_.erase(host);
  }
  const auto found = watched_by_.find(client);
  if (found == watched_by_.end()) return;
  for (const std::string& key : found->second) {
    const auto place = watchers_of_.find(key);
    std::erase(place->second, client);
    if (place->second.empty()) watchers_of_.erase(place);
  }
  watches_ -= found->second.size();
  watched_by_.erase(found);
}

}  // namespace lockstep::store
