#include "runtime/store/key_table.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/store/messages.h"

namespace lockstep::store {

void KeyTable::check_room(std::string_view key, std::size_t old_bytes, std::size_t new_bytes) const {
  const std::size_t total = bytes_ - old_bytes + new_bytes;
  if (new_bytes > old_bytes && total > max_bytes_) {
    throw StoreError(fmt::format("write of {} bytes to key '{}': the store would hold {} bytes, its limit is {}",
                                 new_bytes, key, total, max_bytes_));
  }
}

void KeyTable::store(std::string_view key, std::string value) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    check_room(key, found->second.size(), value.size());
    bytes_ = bytes_ - found->second.size() + value.size();
    found->second = std::move(value);
    return;
  }
  check_room(key, 0, key.size() + value.size());
  bytes_ += key.size() + value.size();
  values_.emplace(key, std::move(value));
  wake(key);
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
  check_room(key, 0, value.size());
  found->second += value;
  bytes_ += value.size();
}

bool KeyTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= found->first.size() + found->second.size();
  values_.erase(found);
  return true;
}

// Moves on to the first key that is lacking; true if there is none. Keys that were seen once are looked at again only
// when the last has come, because they may have been deleted since.
bool KeyTable::advance(Wait& wait) const {
  const std::size_t count = wait.keys.size();
  for (std::size_t seen = 0; seen < count; wait.lacking = (wait.lacking + 1) % count, ++seen) {
    if (!values_.contains(wait.keys[wait.lacking])) return false;
  }
  return true;
}

bool KeyTable::wait(WaiterId waiter, const std::vector<std::string_view>& keys) {
  std::size_t lacking = 0;
  while (lacking < keys.size() && values_.contains(keys[lacking])) ++lacking;
  if (lacking == keys.size()) return true;
  const Wait& wait = waits_[waiter] = {{keys.begin(), keys.end()}, lacking};
  waiters_at_[wait.keys[lacking]].insert(waiter);
  return false;
}

void KeyTable::wake(std::string_view key) {
  const auto found = waiters_at_.find(key);
  if (found == waiters_at_.end()) return;
  const auto waiters = std::move(found->second);
  waiters_at_.erase(found);
  for (const WaiterId waiter : waiters) {
    Wait& wait = waits_.at(waiter);
    if (advance(wait)) {
      waits_.erase(waiter);
      woken_.insert(waiter);
    } else {
      waiters_at_[wait.keys[wait.lacking]].insert(waiter);
    }
  }
}

void KeyTable::cancel(WaiterId waiter) {
  woken_.erase(waiter);
  const auto found = waits_.find(waiter);
  if (found == waits_.end()) return;
  const auto place = waiters_at_.find(found->second.keys[found->second.lacking]);
  place->second.erase(waiter);
  if (place->second.empty()) waiters_at_.erase(place);
  waits_.erase(found);
}

std::vector<KeyTable::WaiterId> KeyTable::take_woken() {
  std::vector<WaiterId> result(woken_.begin(), woken_.end());
  woken_.clear();
  return result;
}

}  // namespace lockstep::store
