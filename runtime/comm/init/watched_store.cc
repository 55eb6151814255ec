// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/watched_store.h"

#include "lockstep/base/error.h"

namespace lockstep {

template <typename Wait>
auto WatchedStore::unless_failed(const Wait& wait) {
  try {
    return wait();
  } catch (const Timeout&) {
    watch_->check();
    throw;
  } catch (const store::StoreLost&) {  // the failure may be its host's
    watch_->check_after_loss();
    throw;
  }
}

void WatchedStore::set(std::string_view key, std::string_view value) {
  unless_failed([&] { store_->set(key, value); });
}

std::int64_t WatchedStore::add(std::string_view key, std::int64_t delta) {
  return unless_failed([&] { return store_->add(key, delta); });
}

std::string WatchedStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  return unless_failed([&] { return store_->compare_set(key, expected, desired); });
}

bool WatchedStore::check(std::span<const std::string> keys) {
  if (unless_failed([&] { return store_->check(keys); })) return true;
  watch_->check();
  return false;
}

bool WatchedStore::erase(std::string_view key) {
  return unless_failed([&] { return store_->erase(key); });
}

std::int64_t WatchedStore::num_keys() {
  return unless_failed([&] { return store_->num_keys(); });
}

std::vector<std::string> WatchedStore::list_keys() {
  return unless_failed([&] { return store_->list_keys(); });
}

std::string WatchedStore::get(std::string_view key, const Deadline& deadline) {
  return unless_failed([&] { return store_->get(key, deadline); });
}

std::vector<std::string> WatchedStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return unless_failed([&] { return store_->multi_get(keys, deadline); });
}

}  // namespace lockstep
