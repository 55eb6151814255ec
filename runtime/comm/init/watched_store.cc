#include "runtime/comm/init/watched_store.h"

#include "runtime/base/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSlice{500};
// Ranks that are between two slices keep a barrier from its end: with many ranks that must be rare.
constexpr std::chrono::seconds kBarrierSlice{5};

}  // namespace

template <typename Wait>
auto WatchedStore::in_slices(Deadline::Duration slice, const Deadline& deadline, const Wait& wait) {
  while (deadline.remaining() > slice) {
    try {
      return wait(*store_, Deadline::after(slice));
    } catch (const Timeout&) {
      watch_->check();
    }
  }
  try {
    return wait(*store_, deadline);
  } catch (const Timeout&) {
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
  return in_slices(kSlice, deadline, [&](store::Store& store, const Deadline& slice) { return store.get(key, slice); });
}

void WatchedStore::wait(std::span<const std::string> keys, const Deadline& deadline) {
  in_slices(kSlice, deadline, [&](store::Store& store, const Deadline& slice) { store.wait(keys, slice); });
}

std::vector<std::string> WatchedStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return in_slices(kSlice, deadline,
                   [&](store::Store& store, const Deadline& slice) { return store.multi_get(keys, slice); });
}

std::string WatchedStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  return in_slices(kSlice, deadline,
                   [&](store::Store& store, const Deadline& slice) { return store.queue_pop(queue, slice); });
}

void WatchedStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size,
                           const Deadline& deadline) {
  in_slices(kBarrierSlice, deadline,
            [&](store::Store& store, const Deadline& slice) { store.barrier(name, rank, world_size, slice); });
}

}  // namespace lockstep
