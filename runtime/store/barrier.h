// A barrier over a store: for start-up and shutdown, where there is no process group.
#pragma once

#include <string_view>

#include "runtime/base/deadline.h"
#include "runtime/store/store.h"

namespace lockstep::store {

// Returns when all `world_size` ranks have called it with this `name`. A name serves once; a later barrier needs
// another.
//
// Throws Timeout, naming the ranks that have not come; Mismatch if this rank has come before under this name: either it
// was used twice, or two processes have the same rank; InvalidArgument if `rank` is no rank of that world. A rank that
// gives up has still come: it does not take its arrival back.
void barrier(Store& store, std::string_view name, int rank, int world_size, const Deadline& deadline);

}  // namespace lockstep::store
