#include "runtime/store/hash_store.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/store/messages.h"

namespace lockstep::store {

bool HashStore::has_items(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found != queues_.end() && !found->second.items.empty();
}

std::vector<std::string> HashStore::missing(std::span<const std::string> keys, bool queues_count) const {
  std::vector<std::string> result;
  for (const std::string& key : keys) {
    if (!values_.contains(key) && !(queues_count && has_items(key))) result.push_back(key);
  }
  return result;
}

bool HashStore::wait_for_change(const Deadline& deadline) { return !stopped_ && changed_.wait_until(mutex_, deadline); }

void HashStore::stop_waiting() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void HashStore::wait_locked(std::span<const std::string> keys, bool queues_count, const Deadline& deadline) {
  while (!missing(keys, queues_count).empty()) {
    if (wait_for_change(deadline)) continue;
    const auto absent = missing(keys, queues_count);
    if (absent.empty()) return;
    throw_wait_timeout(description(), keys, absent, deadline);
  }
}

void HashStore::set(std::string_view key, std::string_view value) {
  check_sizes(description(), key, value);
  MutexLock lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::string HashStore::get(std::string_view key, const Deadline& deadline) {
  MutexLock lock(mutex_);
  const std::string name(key);
  wait_locked(std::span(&name, 1), false, deadline);
  return values_.find(key)->second;
}

void HashStore::wait(std::span<const std::string> keys, const Deadline& deadline) {
  MutexLock lock(mutex_);
  wait_locked(keys, true, deadline);
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
  return missing(keys, true).empty();
}

bool HashStore::erase(std::string_view key) {
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

void HashStore::append(std::string_view key, std::string_view value) {
  check_sizes(description(), key, value);
  MutexLock lock(mutex_);
  std::string& present = values_[std::string(key)];
  check_append(description(), key, present.size(), value.size(), kMaxValueBytes);
  present += value;
  changed_.notify_all();
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  MutexLock lock(mutex_);
  wait_locked(keys, false, deadline);
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(values_.find(key)->second);
  return result;
}

void HashStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values) {
  check_pairs(description(), keys.size(), values.size());
  for (std::size_t i = 0; i < keys.size(); ++i) check_sizes(description(), keys[i], values[i]);
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < keys.size(); ++i) values_.insert_or_assign(keys[i], values[i]);
  changed_.notify_all();
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

void HashStore::queue_push(std::string_view queue, std::string_view value) {
  check_sizes(description(), queue, value);
  MutexLock lock(mutex_);
  queues_[std::string(queue)].items.emplace_back(value);
  changed_.notify_all();
}

std::string HashStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  check_sizes(description(), queue, {});
  MutexLock lock(mutex_);
  const auto place = queues_.try_emplace(std::string(queue)).first;  // stays as long as a ticket is in it
  auto& items = place->second.items;
  auto& waiting = place->second.waiting;
  const std::uint64_t ticket = next_ticket_++;
  waiting.push_back(ticket);
  const auto is_our_turn = [&] { return waiting.front() == ticket && !items.empty(); };
  while (!is_our_turn() && wait_for_change(deadline)) {
  }
  const bool served = is_our_turn();
  std::erase(waiting, ticket);
  std::string item;
  if (served) {
    item = std::move(items.front());
    items.pop_front();
  }
  changed_.notify_all();  // the next in the line may have its turn now
  if (items.empty() && waiting.empty()) queues_.erase(place);
  if (!served) throw_queue_timeout(description(), queue, deadline);
  return item;
}

std::int64_t HashStore::queue_length(std::string_view queue) {
  MutexLock lock(mutex_);
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.items.size());
}

void HashStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) {
  check_sizes(description(), name, {});
  MutexLock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  const BarrierTable::Arrival arrival = barriers_.arrive(ticket, name, rank, world_size);
  if (!arrival.refusal.empty()) {
    throw InvalidArgument(fmt::format("store ({}): {}", description(), arrival.refusal));
  }
  for (const std::uint64_t released : barriers_.take_released()) {
    released_.insert(released);
    changed_.notify_all();
  }
  if (arrival.complete) return;
  while (!released_.contains(ticket) && wait_for_change(deadline)) {
  }
  if (released_.erase(ticket) != 0) return;
  const BarrierTable::Missing missing_ranks = barriers_.missing(ticket);
  barriers_.give_up(ticket);
  throw_barrier_timeout(description(), name, world_size, missing_ranks.ranks, missing_ranks.count, deadline);
}

}  // namespace lockstep::store
