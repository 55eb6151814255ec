// A barrier out of a store's keys, for servers that have none of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/store/store.h"

namespace lockstep::store {

// As Store::barrier(), with keys below `name`, of which the last time through leaves one for each rank. What differs:
// who has timed out has come all the same, and the others may go on; it finds them gone when it comes again, and goes
// on too. Two processes of one rank, or ranks that disagree about the world size, are not seen: they time out.
void barrier_over_keys(Store& store, std::string_view name, std::int64_t rank, std::int64_t world_size,
                       const Deadline& deadline);

}  // namespace lockstep::store
