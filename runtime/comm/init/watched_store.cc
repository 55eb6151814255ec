#include "runtime/comm/init/watched_store.h"

#include "runtime/base/error.h"

namespace lockstep {

template <typename Wait>
auto WatchedStore::unless_failed(const Wait& wait) {
  try {
    return wait();
  } catch (const Timeout&) {
    watch_->check();
    throw;
  } catch (const StoreError&) {  // the failure may be the store's: it doesn't even answer that nobody waits any more
    watch_->check();
    throw;
  }
}

bool WatchedStore::check(std::span<const std::string> keys) {
  if (store_->check(keys)) return true;
  watch_->check();
  return false;
}

std::string WatchedStore::get(std::string_view key, const Deadline& deadline) {
  return unless_failed([&] { return store_->get(key, deadline); });
}

void WatchedStore::wait(std::span<const std::string> keys, const Deadline& deadline) {
  unless_failed([&] { store_->wait(keys, deadline); });
}

std::vector<std::string> WatchedStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return unless_failed([&] { return store_->multi_get(keys, deadline); });
}

std::string WatchedStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  return unless_failed([&] { return store_->queue_pop(queue, deadline); });
}

void WatchedStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size,
                           const Deadline& deadline) {
  unless_failed([&] { store_->barrier(name, rank, world_size, deadline); });
}

}  // namespace lockstep
