#include "runtime/store/watch_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace lockstep::store {

void WatchTable::watch(WatcherId watcher, std::string_view key) {
  const std::string name(key);
  const std::vector<WatcherId> present = watchers(key);
  if (std::find(present.begin(), present.end(), watcher) != present.end()) return;
  if (watches_ >= max_watches_) {
    throw StoreError(fmt::format("WATCH_KEY '{}': {} keys are watched, the limit is {}", key, watches_, max_watches_));
  }
  at_key_[name].push_back(watcher);
  of_watcher_[watcher].push_back(name);
  ++watches_;
}

void WatchTable::forget(WatcherId watcher) {
  const auto found = of_watcher_.find(watcher);
  if (found == of_watcher_.end()) return;
  for (const std::string& key : found->second) {
    const auto place = at_key_.find(key);
    std::erase(place->second, watcher);
    if (place->second.empty()) at_key_.erase(place);
  }
  watches_ -= found->second.size();
  of_watcher_.erase(found);
}

std::vector<WatchTable::WatcherId> WatchTable::watchers(std::string_view key) const {
  if (at_key_.empty()) return {};
  const auto found = at_key_.find(std::string(key));
  return found == at_key_.end() ? std::vector<WatcherId>() : found->second;
}

}  // namespace lockstep::store
