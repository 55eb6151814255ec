// SPDX-License-Identifier: Apache-2.0
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

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) { return store_->add(prefixed(key), delta); }

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return store_->compare_set(prefixed(key), expected, desired);
}

bool PrefixStore::check(std::span<const std::string> keys) { return store_->check(prefixed(keys)); }

bool PrefixStore::erase(std::string_view key) { return store_->erase(prefixed(key)); }

std::vector<std::string> PrefixStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return store_->multi_get(prefixed(keys), deadline);
}

std::vector<std::string> PrefixStore::list_keys() {
  const std::string start = prefixed(std::string_view());
  std::vector<std::string> result;
  for (const std::string& key : store_->list_keys()) {
    if (key.starts_with(start)) result.push_back(key.substr(start.size()));
  }
  return result;
}

}  // namespace lockstep::store
