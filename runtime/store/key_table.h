// What a store server keeps: keys, their values, and who waits for which.
//
// One thread. Knows neither sockets nor the wire; waiters are numbers that mean something to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lockstep::store {

class KeyTable {
 public:
  using WaiterId = std::uint64_t;

  // Keys and values together may take `max_bytes`; beyond it a write throws StoreError and changes nothing.
  explicit KeyTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // As in store.h. add() throws StoreError if the value is no number or the sum overflows.
  void set(std::string_view key, std::string_view value);
  // Null if there is no such key. Valid until the next write.
  const std::string* find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void append(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  std::size_t size() const { return values_.size(); }

  // True if all of `keys` exist. Else `waiter`, which must not be waiting already, is remembered, and take_woken()
  // returns it once they do, all at the same time.
  bool wait(WaiterId waiter, const std::vector<std::string_view>& keys);
  // Forgets a waiter; nothing if it isn't one. It is not woken any more.
  void cancel(WaiterId waiter);
  // The waiters whose keys have come since the last call. They don't wait any more.
  std::vector<WaiterId> take_woken();

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <typename V>
  using KeyMap = std::unordered_map<std::string, V, Hash, std::equal_to<>>;

  // A waiter is registered at one key at a time, the first that it lacks, so that a wait for n keys costs n in all.
  struct Wait {
    std::vector<std::string> keys;
    std::size_t lacking = 0;  // index of the key where it is registered
  };

  void store(std::string_view key, std::string value);
  void check_room(std::string_view key, std::size_t old_bytes, std::size_t new_bytes) const;
  bool advance(Wait& wait) const;
  void wake(std::string_view key);

  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  KeyMap<std::string> values_;
  std::unordered_map<WaiterId, Wait> waits_;
  KeyMap<std::unordered_set<WaiterId>> waiters_at_;
  std::unordered_set<WaiterId> woken_;
};

}  // namespace lockstep::store
