#include "runtime/store/prefix_store.h"

namespace lockstep::store {

std::string PrefixStore::prefixed(std::string_view key) const {
  std::string result;
  result.reserve(prefix_.size() + 1 + key.size());
  return result.append(prefix_).append(1, '/').append(key);
}

std::vector<std::string> PrefixStore::prefixed(std::span<const std::string> keys) const {
  std::vector<std::string> result;
  result.reserve(keys.size());
  for (const std::string& key : keys) result.push_back(prefixed(key));
  return result;
}

void PrefixStore::set(std::string_view key, std::string_view value) { store_->set(prefixed(key), value); }

std::string PrefixStore::get(std::string_view key, const Deadline& deadline) {
  return store_->get(prefixed(key), deadline);
}

void PrefixStore::wait(std::span<const std::string> keys, const Deadline& deadline) {
  store_->wait(prefixed(keys), deadline);
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) { return store_->add(prefixed(key), delta); }

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return store_->compare_set(prefixed(key), expected, desired);
}

bool PrefixStore::check(std::span<const std::string> keys) { return store_->check(prefixed(keys)); }

bool PrefixStore::erase(std::string_view key) { return store_->erase(prefixed(key)); }

void PrefixStore::append(std::string_view key, std::string_view value) { store_->append(prefixed(key), value); }

std::vector<std::string> PrefixStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return store_->multi_get(prefixed(keys), deadline);
}

void PrefixStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values) {
  store_->multi_set(prefixed(keys), values);
}

std::vector<std::string> PrefixStore::list_keys() {
  const std::string start = prefixed(std::string_view());
  std::vector<std::string> result;
  for (const std::string& key : store_->list_keys()) {
    if (key.starts_with(start)) result.push_back(key.substr(start.size()));
  }
  return result;
}

void PrefixStore::queue_push(std::string_view queue, std::string_view value) {
  store_->queue_push(prefixed(queue), value);
}

std::string PrefixStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  return store_->queue_pop(prefixed(queue), deadline);
}

std::int64_t PrefixStore::queue_length(std::string_view queue) { return store_->queue_length(prefixed(queue)); }

void PrefixStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) {
  store_->barrier(prefixed(name), rank, world_size, deadline);
}

}  // namespace lockstep::store
