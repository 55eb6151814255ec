// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/key_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/store/messages.h"

namespace lockstep::store {

void KeyTable::check_room(std::string_view key, std::size_t old_bytes, std::size_t new_bytes, bool is_new) const {
  const std::size_t total = bytes_ - old_bytes + new_bytes;
  const bool small = new_bytes <= kSmallBytes;
  const std::size_t limit = limits_.max_bytes - (small ? 0 : limits_.max_bytes / 16);
  if (new_bytes > old_bytes && total > limit) {
    throw StoreError(fmt::format(
        "write of {} bytes to key '{}': the store would hold {} bytes, and its limit is {}{}; erase keys, or raise the "
        "limit (lockstep store serve --max-memory)",
        new_bytes, key, total, limit, small ? "" : fmt::format(" for writes of more than {}", kSmallBytes)));
  }
  const std::size_t entries = values_.size() + items_;
  if (is_new && entries >= limits_.max_entries) {
    throw StoreError(
        fmt::format("write to key '{}': the store holds {} keys and items of queues, and its limit is {}; erase some "
                    "of them, or raise the limit (lockstep store serve --max-keys)",
                    key, entries, limits_.max_entries));
  }
}

void KeyTable::store(std::string_view key, std::string value) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    // Calls that may throw come first. Call observer_ while the table still has the old value. No waiter is woken,
    // because no waiter waits at a key that exists.
    check_room(key, found->second.size(), value.size(), false);
    ++version_;
    if (observer_) observer_(key, &found->second, &value);
    bytes_ = bytes_ - found->second.size() + value.size();
    found->second = std::move(value);
    return;
  }
  check_room(key, 0, key.size() + value.size(), true);
  ++version_;
  if (observer_) observer_(key, nullptr, &value);
  bytes_ += key.size() + value.size();
  values_.emplace(key, std::move(value));
  wake_for_value(key);  // last, because wake_for_value() looks whether the keys exist
}

void KeyTable::set(std::string_view key, std::string_view value) { store(key, std::string(value)); }

const std::string* KeyTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::int64_t KeyTable::add(std::string_view key, std::int64_t delta) {
  const std::int64_t sum = add_to_value("tcp server", key, find(key), delta);
  store(key, std::to_string(sum));
  return sum;
}

std::string KeyTable::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const std::string* value = find(key);
  if (value != nullptr ? *value == expected : expected.empty()) {
    set(key, desired);
    return std::string(desired);
  }
  return value != nullptr ? *value : std::string(expected);
}

void KeyTable::append(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) return set(key, value);
  std::string& present = found->second;
  check_append("tcp server", key, present.size(), value.size(), limits_.max_value_bytes);
  check_room(key, present.size(), present.size() + value.size(), false);
  ++version_;
  if (observer_) {
    const std::string after = present + std::string(value);
    observer_(key, &present, &after);
  }
  present += value;
  bytes_ += value.size();
}

bool KeyTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  ++version_;
  if (observer_) observer_(key, &found->second, nullptr);
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return true;
}

void KeyTable::erase_all(std::string_view prefix) {
  for (const std::string_view key : keys()) {
    if (key.starts_with(prefix)) erase(key);
  }
}

std::vector<std::string_view> KeyTable::keys() const {
  std::vector<std::string_view> result;
  result.reserve(values_.size());
  for (const auto& [key, value] : values_) result.push_back(key);
  std::sort(result.begin(), result.end());
  return result;
}

void KeyTable::queue_push(std::string_view queue, std::string_view item) {
  const auto found = queues_.find(queue);
  const std::size_t name_bytes = found == queues_.end() ? queue.size() : 0;
  check_room(queue, 0, name_bytes + item.size(), true);
  Queue& place = found == queues_.end() ? queues_[std::string(queue)] : found->second;
  place.items.emplace_back(item);
  bytes_ += name_bytes + item.size();
  ++items_;
  wake_for_item(queue);
}

std::optional<std::string> KeyTable::queue_pop(std::string_view queue) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return std::nullopt;
  auto& [name, place] = *found;
  std::string item = std::move(place.items.front());
  place.items.pop_front();
  bytes_ -= item.size();
  --items_;
  if (place.items.empty()) {
    bytes_ -= name.size();
    queues_.erase(found);
  }
  return item;
}

std::size_t KeyTable::queue_length(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : found->second.items.size();
}

bool KeyTable::exists(std::string_view key, Await what) const {
  return values_.contains(key) || (what == Await::key_or_queue && queues_.contains(key));
}

// Advances `wait.lacking` to the next missing key. Returns true if no key of the wait is missing. After the last key
// has arrived, advance() looks at the earlier keys again, because the earlier keys may have been deleted.
bool KeyTable::advance(Wait& wait) const {
  const std::size_t count = wait.keys.size();
  for (std::size_t seen = 0; seen < count; wait.lacking = (wait.lacking + 1) % count, ++seen) {
    if (!exists(wait.keys[wait.lacking], wait.what)) return false;
  }
  return true;
}

void KeyTable::attend(WaiterId waiter, const Wait& wait) {
  waiters_at_[wait.keys[wait.lacking]].emplace(wait.number, waiter);
}

bool KeyTable::wait(WaiterId waiter, const std::vector<std::string_view>& keys, Await what) {
  std::size_t lacking = 0;
  while (lacking < keys.size() && exists(keys[lacking], what)) ++lacking;
  if (lacking == keys.size()) return true;
  if (waited_keys_ + keys.size() > limits_.max_waited_keys) {
    throw StoreError(
        fmt::format("wait for {} keys: clients of this store wait for {} keys already, and the limit is {}; wait for "
                    "fewer keys at a time",
                    keys.size(), waited_keys_, limits_.max_waited_keys));
  }
  waited_keys_ += keys.size();
  const Wait& wait = waits_[waiter] = {{keys.begin(), keys.end()}, what, lacking, next_number_++};
  attend(waiter, wait);
  return false;
}

void KeyTable::wake_for_value(std::string_view key) {
  const auto found = waiters_at_.find(key);
  if (found == waiters_at_.end()) return;
  // Move the waiters out of waiters_at_ and erase their entry first, because attend() inserts into waiters_at_, and a
  // rehash invalidates `found`.
  const auto waiters = std::move(found->second);
  waiters_at_.erase(found);
  for (const auto& [number, waiter] : waiters) {
    const auto place = waits_.find(waiter);
    Wait& wait = place->second;
    if (!advance(wait)) {
      attend(waiter, wait);
      continue;
    }
    waited_keys_ -= wait.keys.size();
    waits_.erase(place);
    woken_.push_back(waiter);
  }
}

void KeyTable::wake_for_item(std::string_view queue) {
  const auto found = queues_.find(queue);
  const auto place = waiters_at_.find(queue);
  if (found == queues_.end() || place == waiters_at_.end()) return;
  auto& [name, entry] = *found;
  auto& waiters = place->second;
  for (auto next = waiters.begin(); next != waiters.end() && entry.promised < entry.items.size();) {
    const WaiterId waiter = next->second;
    Wait& wait = waits_.at(waiter);
    if (wait.what == Await::key) {
      ++next;
      continue;
    }
    next = waiters.erase(next);
    if (!advance(wait)) {
      attend(waiter, wait);  // at another key, because this key exists
      continue;
    }
    waited_keys_ -= wait.keys.size();
    promises_.emplace(waiter, name);
    waits_.erase(waiter);
    woken_.push_back(waiter);
    ++entry.promised;
  }
  // Look up the queue's waiters again, because attend() may have rehashed waiters_at_ and invalidated `place`.
  const auto left = waiters_at_.find(queue);
  if (left->second.empty()) waiters_at_.erase(left);
}

void KeyTable::release_promise(WaiterId waiter) {
  const auto found = promises_.find(waiter);
  if (found == promises_.end()) return;
  const std::string queue = std::move(found->second);
  promises_.erase(found);
  const auto place = queues_.find(queue);
  if (place == queues_.end()) return;
  if (place->second.promised > 0) --place->second.promised;
  wake_for_item(queue);
}

void KeyTable::cancel(WaiterId waiter) {
  // Forget the waiter even if the waiter was woken but take_woken() has not returned the waiter yet. The call of
  // release_promise() lets the queue item that woke the cancelled waiter wake the next waiter.
  std::erase(woken_, waiter);
  release_promise(waiter);
  const auto found = waits_.find(waiter);
  if (found == waits_.end()) return;
  const Wait& wait = found->second;
  const auto place = waiters_at_.find(wait.keys[wait.lacking]);
  place->second.erase(wait.number);
  if (place->second.empty()) waiters_at_.erase(place);
  waited_keys_ -= wait.keys.size();
  waits_.erase(found);
}

std::vector<std::string_view> KeyTable::missing(WaiterId waiter) const {
  std::vector<std::string_view> result;
  const auto found = waits_.find(waiter);
  if (found == waits_.end()) return result;
  for (const std::string& key : found->second.keys) {
    if (!exists(key, found->second.what)) result.push_back(key);
  }
  return result;
}

std::vector<KeyTable::WaiterId> KeyTable::take_woken() { return std::exchange(woken_, {}); }

}  // namespace lockstep::store
