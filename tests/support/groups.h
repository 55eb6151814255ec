// SPDX-License-Identifier: Apache-2.0
// Groups of some of a test's ranks, which are threads: several in one process.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/host.h"
#include "runtime/comm/backend.h"
#include "runtime/store/prefix_store.h"

namespace lockstep::testing {

// The group `name` of the test's ranks `members`, as the test's rank `rank` has it. Collective. On a device each of the
// test's ranks has that of its number.
inline std::shared_ptr<ProcessGroup> make_group(const std::string& name, const std::string& backend,
                                                const std::vector<int>& members, int rank,
                                                const std::shared_ptr<store::Store>& store) {
  const auto found =
      std::find_if(backends().begin(), backends().end(), [&](const Backend& b) { return b.name == backend; });
  GroupContext context;
  for (const int member : members) {
    const int place = static_cast<int>(context.roster.size());
    if (member == rank) context.identity.rank = context.identity.local_rank = place;
    context.roster.push_back({place, place, ::getpid(), host_name(), boot_id()});
  }
  context.identity.world_size = context.identity.local_world_size = static_cast<int>(members.size());
  context.store = std::make_shared<store::PrefixStore>(name, store);
  context.timeout = std::chrono::seconds(60);
  if (found->device == DeviceKind::cuda) context.device = {DeviceKind::cuda, rank};
  return found->create(context, Deadline::after(std::chrono::seconds(60)));
}

// A group of some of `group`'s ranks, beside it.
inline std::shared_ptr<ProcessGroup> make_group_beside(const std::shared_ptr<ProcessGroup>& group,
                                                       const std::string& name, const std::vector<int>& members) {
  return make_group(name, std::string(group->backend()), members, group->rank(), {group, &group->store()});
}

}  // namespace lockstep::testing
