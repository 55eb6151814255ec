// SPDX-License-Identifier: Apache-2.0
// KeyTable holds the data of a store server: keys and their values, queues and their items, and the waiting clients.
//
// One thread uses a KeyTable. A KeyTable uses neither sockets nor the wire format; the caller identifies each waiter by
// a number. A call that would exceed a limit throws StoreError and changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::store {

class KeyTable {
 public:
  using WaiterId = std::uint64_t;

  // The size of the largest write, in bytes of key and value, that may use the last sixteenth of max_bytes. The last
  // sixteenth of max_bytes lets ranks meet and report failures even after a client has filled the store with large
  // values. Many small writes can still fill the last sixteenth of max_bytes, and no part of max_entries is reserved.
  static constexpr std::size_t kSmallBytes = 4096;

  struct Limits {
    std::size_t max_bytes = std::size_t{1} << 30;        // the most bytes of keys, values and items together
    std::size_t max_entries = std::size_t{1} << 20;      // the most keys and items together
    std::size_t max_value_bytes = std::size_t{8} << 20;  // the most bytes of one value, also after append()
    std::size_t max_waited_keys = std::size_t{4} << 20;  // the most keys in all waits together
  };
  explicit KeyTable(const Limits& limits) : limits_(limits) {}

  // set(), add(), compare_set() and erase() work like the functions of Store (store.h). The function add() throws
  // StoreError if the value is not a number or the sum overflows.
  void set(std::string_view key, std::string_view value);
  // Returns the value, or null if the key does not exist. The returned pointer is valid until the next write to
  // the table.
  const std::string* find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void append(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  // Erases the keys that begin with `prefix`. A call of erase_all() keeps all queues, even if their names
  // begin with `prefix`.
  void erase_all(std::string_view prefix);
  std::size_t size() const { return values_.size(); }
  // Returns a number that increases whenever a value changes or a key is erased.
  std::uint64_t version() const { return version_; }
  // Returns all keys, sorted.
  std::vector<std::string_view> keys() const;

  void queue_push(std::string_view queue, std::string_view item);
  std::optional<std::string> queue_pop(std::string_view queue);
  std::size_t queue_length(std::string_view queue) const;

  // Await says whether a queue that has an item counts as a key with the queue's name, as in PyTorch's WAIT and CHECK.
  enum class Await { key, key_or_queue };
  bool exists(std::string_view key, Await what) const;
  // Returns true if all of `keys` exist. If a key is missing, the table remembers `waiter`, and take_woken() returns
  // `waiter` once all of `keys` exist at the same time. REQUIRES: `waiter` is not waiting already. A new item in a
  // queue wakes only the waiter that has waited longest for the queue. The table expects the woken waiter to take the
  // item, so the next waiter waits for the next item.
  bool wait(WaiterId waiter, const std::vector<std::string_view>& keys, Await what);
  // Records that `waiter`, after it was woken, has sent its next request. If the waiter did not take the item that woke
  // it, the item may wake the next waiter.
  void release_promise(WaiterId waiter);
  // Forgets `waiter`, so that take_woken() will not return `waiter`. Does nothing for an unknown number.
  void cancel(WaiterId waiter);
  // Returns the keys for which `waiter` still waits. The returned views are valid until the waiter's wait ends.
  std::vector<std::string_view> missing(WaiterId waiter) const;
  // Returns the waiters whose keys have arrived since the last take_woken(). The returned waiters don't wait any more.
  std::vector<WaiterId> take_woken();

  // The table calls the Observer just before each change of a value. `before` is null if the key does not exist before
  // the change, and `after` is null if the change erases the key.
  using Observer = std::function<void(std::string_view key, const std::string* before, const std::string* after)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  template <typename V>
  using KeyMap = std::unordered_map<std::string, V, Hash, std::equal_to<>>;

  // A Wait is registered at only one key at a time, namely the wait's first missing key. A wait for n keys therefore
  // costs O(n) in total.
  struct Wait {
    std::vector<std::string> keys;
    Await what = Await::key;
    std::size_t lacking = 0;   // the index of the key where the wait is registered
    std::uint64_t number = 0;  // the number of the wait; later waits have larger numbers
  };
  struct Queue {
    std::deque<std::string> items;
    std::size_t promised = 0;  // the number of items that have woken a waiter without a next request yet
  };

  void store(std::string_view key, std::string value);
  void check_room(std::string_view key, std::size_t old_bytes, std::size_t new_bytes, bool is_new) const;
  bool advance(Wait& wait) const;
  void attend(WaiterId waiter, const Wait& wait);
  void wake_for_value(std::string_view key);
  void wake_for_item(std::string_view queue);

  const Limits limits_;
  std::uint64_t version_ = 0;
  std::size_t bytes_ = 0;
  std::size_t items_ = 0;
  KeyMap<std::string> values_;
  KeyMap<Queue> queues_;
  std::unordered_map<WaiterId, Wait> waits_;
  std::size_t waited_keys_ = 0;
  std::uint64_t next_number_ = 0;
  // The waiters that are registered at each key, sorted by Wait::number.
  KeyMap<std::map<std::uint64_t, WaiterId>> waiters_at_;
  std::unordered_map<WaiterId, std::string> promises_;  // by waiter: the queue whose item woke the waiter
  std::vector<WaiterId> woken_;
  Observer observer_;
};

}  // namespace lockstep::store
