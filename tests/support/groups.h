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
#include "tests/support/thread_scopes.h"

namespace lockstep::testing {

// Has the first `hosts[0]` members share memory, the next `hosts[1]` others, and so on.
inline void place_on_hosts(rendezvous::Roster& roster, const std::vector<int>& hosts) {
  std::size_t next = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < hosts[host]; ++local) {
      roster[next].local_rank = local;
      roster[next++].network = "network " + std::to_string(host);
    }
  }
}

// The group `name` of the test's ranks `members`, as the test's rank `rank` has it. Collective. On a device each of the
// test's ranks has that of its number. `hosts`: as place_on_hosts() has it; none: all are on one.
inline std::shared_ptr<ProcessGroup> make_group(const std::string& name, const std::string& backend,
                                                const std::vector<int>& members, int rank,
                                                const std::shared_ptr<store::Store>& store,
                                                const std::vector<int>& hosts = {}) {
  const auto found =
      std::find_if(backends().begin(), backends().end(), [&](const Backend& b) { return b.name == backend; });
  GroupContext context;
  for (const int member : members) {
    const int place = static_cast<int>(context.roster.size());
    if (member == rank) context.identity.rank = context.identity.local_rank = place;
    context.roster.push_back({place, place, ::getpid(), host_name(), boot_id()});
  }
  place_on_hosts(context.roster, hosts);
  context.identity.world_size = context.identity.local_world_size = static_cast<int>(members.size());
  context.store = std::make_shared<store::PrefixStore>(name, store);
  context.timeout = std::chrono::seconds(60);
  context.scopes = scopes_over(*context.store);
  if (found->device == DeviceKind::cuda) context.device = {DeviceKind::cuda, rank};
  return found->create(context, Deadline::after(std::chrono::seconds(60)));
}

// A group of some of `group`'s ranks, beside it.
inline std::shared_ptr<ProcessGroup> make_group_beside(const std::shared_ptr<ProcessGroup>& group,
                                                       const std::string& name, const std::vector<int>& members) {
  return make_group(name, std::string(group->backend()), members, group->rank(), {group, &group->store()});
}

}  // namespace lockstep::testing
