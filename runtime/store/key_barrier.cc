#include "runtime/store/key_barrier.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/barrier_table.h"
#include "runtime/store/messages.h"

namespace lockstep::store {

void barrier_over_keys(Store& store, std::string_view name, std::int64_t rank, std::int64_t world_size,
                       const Deadline& deadline) {
  check_rank(store.description(), name, rank, world_size);
  const auto arrival = [&](std::int64_t visit, std::int64_t of) { return fmt::format("{}/{}/{}", name, visit, of); };
  const std::string visits = fmt::format("{}/visits/{}", name, rank);
  const std::int64_t visit = store.add(visits, 1);
  std::vector<std::string> arrivals;
  for (std::int64_t other = 0; other < world_size; ++other) arrivals.push_back(arrival(visit, other));
  store.set(arrivals[static_cast<std::size_t>(rank)], "");
  try {
    store.wait(arrivals, deadline);
  } catch (const Timeout&) {
    store.add(visits, -1);  // The next try is for the same time through.
    std::vector<std::int64_t> missing;
    std::int64_t count = 0;
    for (std::int64_t other = 0; other < world_size; ++other) {
      if (store.check(std::span(&arrivals[static_cast<std::size_t>(other)], 1))) continue;
      if (++count <= static_cast<std::int64_t>(BarrierTable::Missing::kListed)) missing.push_back(other);
    }
    throw_barrier_timeout(store.description(), name, world_size, missing, count, deadline);
  }
  // All have come to this time, so nobody looks at the one before it any more.
  if (visit > 1) store.erase(arrival(visit - 1, rank));
}

}  // namespace lockstep::store
