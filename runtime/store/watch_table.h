// Which connections watch which keys: WATCH_KEY of PyTorch 1.13. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::store {

class WatchTable {
 public:
  using WatcherId = std::uint64_t;

  explicit WatchTable(std::size_t max_watches) : max_watches_(max_watches) {}

  // Twice the same is once. StoreError if all watchers together would watch more keys than the limit.
  void watch(WatcherId watcher, std::string_view key);
  // Forgets a watcher; nothing if it isn't one.
  void forget(WatcherId watcher);
  // Who watches `key`, in the order they came.
  std::vector<WatcherId> watchers(std::string_view key) const;

 private:
  const std::size_t max_watches_;
  std::size_t watches_ = 0;
  std::unordered_map<std::string, std::vector<WatcherId>> at_key_;
  std::unordered_map<WatcherId, std::vector<std::string>> of_watcher_;
};

}  // namespace lockstep::store
