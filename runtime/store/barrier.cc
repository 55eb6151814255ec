#include "runtime/store/barrier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "runtime/base/error.h"

namespace lockstep::store {
namespace {

std::string rank_key(std::string_view name, int rank) { return fmt::format("{}/rank/{}", name, rank); }

std::vector<int> missing_ranks(Store& store, std::string_view name, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string key = rank_key(name, rank);
    if (!store.check(std::span(&key, 1))) missing.push_back(rank);
  }
  return missing;
}

}  // namespace

void barrier(Store& store, std::string_view name, int rank, int world_size, const Deadline& deadline) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw InvalidArgument(
        fmt::format("barrier '{}': rank {} of a world of {}; ranks are 0 to world size - 1", name, rank, world_size));
  }
  const std::string done = fmt::format("{}/done", name);
  // The mark tells who has come, the count when all have: one wait of one key for each rank, however many there are.
  if (store.add(rank_key(name, rank), 1) != 1) {
    throw Mismatch(
        fmt::format("barrier '{}' (store {}): rank {} has come before; either two processes have this rank, or "
                    "the name was used twice",
                    name, store.description(), rank));
  }
  if (store.add(fmt::format("{}/count", name), 1) == world_size) store.set(done, "1");
  try {
    store.wait(std::span(&done, 1), deadline);
  } catch (const Timeout&) {
    const std::vector<int> missing = missing_ranks(store, name, world_size);
    if (missing.empty()) {
      throw Timeout(
          fmt::format("barrier '{}' (store {}): rank {} of {} timed out, {}; all ranks have come, but the last of "
                      "them ended before it could say so, or came too late",
                      name, store.description(), rank, world_size, deadline.progress()));
    }
    throw Timeout(
        fmt::format("barrier '{}' (store {}): rank {} of {} timed out, {}; missing: rank{} {}; see what these "
                    "ranks are doing, or whether they were started",
                    name, store.description(), rank, world_size, deadline.progress(), missing.size() == 1 ? "" : "s",
                    fmt::join(missing, ", ")));
  }
}

}  // namespace lockstep::store
