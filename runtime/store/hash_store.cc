// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/hash_store.h"

#include "runtime/store/messages.h"

namespace lockstep::store {

std::vector<std::string> HashStore::missing(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!values_.contains(key)) result.push_back(key);
  }
  return result;
}

bool HashStore::wait_for_change(const Deadline& deadline) { return !stopped_ && changed_.wait_until(mutex_, deadline); }

void HashStore::stop_waiting() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void HashStore::wait_locked(std::span<const std::string> keys, const Deadline& deadline) {
  while (!missing(keys).empty()) {
    if (wait_for_change(deadline)) continue;
    // Look for the keys once more after the deadline or stop_waiting(), because the last key may have arrived at the
    // same moment.
    const auto absent = missing(keys);
    if (absent.empty()) return;
    throw_wait_timeout(description(), keys, absent, deadline);
  }
}

void HashStore::set(std::string_view key, std::string_view value) {
  check_sizes(description(), key, value);
  MutexLock lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();  // wakes all waiters, because each waiter waits for its own keys
}

std::string HashStore::get(std::string_view key, const Deadline& deadline) {
  MutexLock lock(mutex_);
  const std::string name(key);
  wait_locked(std::span(&name, 1), deadline);
  return values_.find(key)->second;  // the key exists: the lock is held since the wait saw the key
}

std::int64_t HashStore::add(std::string_view key, std::int64_t delta) {
  check_sizes(description(), key, {});
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  const std::int64_t sum = add_to_value(description(), key, found == values_.end() ? nullptr : &found->second, delta);
  values_.insert_or_assign(std::string(key), std::to_string(sum));
  changed_.notify_all();
  return sum;
}

std::string HashStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  check_sizes(description(), key, desired);
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  const bool swap = found == values_.end() ? expected.empty() : found->second == expected;
  if (swap) {
    values_.insert_or_assign(std::string(key), std::string(desired));
    changed_.notify_all();
    return std::string(desired);
  }
  return found == values_.end() ? std::string(expected) : found->second;
}

bool HashStore::check(std::span<const std::string> keys) {
  MutexLock lock(mutex_);
  return missing(keys).empty();
}

bool HashStore::erase(std::string_view key) {
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  MutexLock lock(mutex_);
  wait_locked(keys, deadline);
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(values_.find(key)->second);
  return result;
}

std::int64_t HashStore::num_keys() {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(values_.size());
}

std::vector<std::string> HashStore::list_keys() {
  MutexLock lock(mutex_);
  std::vector<std::string> result;
  for (const auto& [key, value] : values_) result.push_back(key);
  return result;
}

}  // namespace lockstep::store
