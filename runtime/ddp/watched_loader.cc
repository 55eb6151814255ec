// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/watched_loader.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {

void require_rank_of_group(const ProcessGroup& group, int rank, int world) {
  if (rank == group.rank() && world == group.size()) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: watch() got a sampler that reads for rank {} of {}, but this is rank {} of {}, so some "
      "rows would be read by several ranks, or by none; construct the sampler with the group's rank() and size()",
      rank, world, group.rank(), group.size()));
}

IsOver training_is_over(const ProcessGroup& group) {
  return [weak = std::weak_ptr<const CoordinatedStop>(group.internals().coordinated_stop())] {
    const auto stop = weak.lock();
    return stop && stop->is_latched();
  };
}

}  // namespace lockstep
