// What a store server keeps: keys and their values, queues and their items, and who waits for which.
//
// One thread. Knows neither sockets nor the wire; waiters are numbers that mean something to the caller. A call that
// would break a limit throws StoreError and changes nothing.
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

  // The last sixteenth of max_bytes is kept for writes of at most this many bytes, key and value: who fills the store
  // with large values does not keep the ranks from meeting, nor from saying what has failed. Many small writes still
  // fill it, and nothing is kept of max_entries.
  static constexpr std::size_t kSmallBytes = 4096;

  struct Limits {
    std::size_t max_bytes = std::size_t{1} << 30;        // of keys, values and items together
    std::size_t max_entries = std::size_t{1} << 20;      // keys and items
    std::size_t max_value_bytes = std::size_t{8} << 20;  // of one value, also one that grew by append()
    std::size_t max_waited_keys = std::size_t{4} << 20;  // in all waits together
  };
  explicit KeyTable(const Limits& limits) : limits_(limits) {}

  // As in store.h. add() throws StoreError if the value is no number or the sum overflows.
  void set(std::string_view key, std::string_view value);
  // Null if there is no such key. Valid until the next write.
  const std::string* find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired);
  void append(std::string_view key, std::string_view value);
  bool erase(std::string_view key);
  std::size_t size() const { return values_.size(); }
  // Another after each change of a value.
  std::uint64_t version() const { return version_; }
  // Sorted.
  std::vector<std::string_view> keys() const;

  void queue_push(std::string_view queue, std::string_view item);
  std::optional<std::string> queue_pop(std::string_view queue);
  std::size_t queue_length(std::string_view queue) const;

  // What a wait for a key takes for its coming.
  enum class Await {
    value,
    item,    // of the queue of that name
    either,  // WAIT's and CHECK's meaning
  };
  bool exists(std::string_view key, Await what) const;
  // True if all of `keys` exist. Else `waiter`, which must not be waiting already, is remembered, and take_woken()
  // returns it once they do, all at the same time. A new item wakes one waiter, the one that waits longest; that one is
  // expected to take it, so the next waits for the next item.
  // Who found that somebody else has taken it may have the place among the waiters that settle() returned.
  using Place = std::uint64_t;
  bool wait(WaiterId waiter, const std::vector<std::string_view>& keys, Await what, std::optional<Place> place = {});
  // A waiter that was woken has done what it wanted to: if it left an item that woke it, the next may have it. Returns
  // the place it had, if an item woke it.
  std::optional<Place> settle(WaiterId waiter);
  // Forgets a waiter; nothing if it isn't one. It is not woken any more.
  void cancel(WaiterId waiter);
  // The keys that a waiter lacks at this moment, as views into its wait.
  std::vector<std::string_view> missing(WaiterId waiter) const;
  // The waiters whose keys have come since the last call. They don't wait any more.
  std::vector<WaiterId> take_woken();

  // Told of each change of a value, just before it: null if there is none before or after.
  using Observer = std::function<void(std::string_view key, const std::string* before, const std::string* after)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

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
    Await what = Await::value;
    std::size_t lacking = 0;  // index of the key where it is registered
    Place number = 0;         // the sooner it came, the smaller
  };
  // An item woke a waiter.
  struct Promise {
    std::string queue;
    Place number = 0;  // that the waiter had
  };
  struct Queue {
    std::deque<std::string> items;
    std::size_t promised = 0;  // items that have woken somebody who has not settled yet
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
  KeyMap<std::map<std::uint64_t, WaiterId>> waiters_at_;  // by their numbers
  std::unordered_map<WaiterId, Promise> promises_;
  std::vector<WaiterId> woken_;
  Observer observer_;
};

}  // namespace lockstep::store
