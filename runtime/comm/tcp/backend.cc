// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/backend.h"

#include "runtime/comm/hosts/shared_within_hosts.h"
#include "runtime/comm/tcp/wire_tcp.h"
#include "runtime/comm/wire/process_group_wire.h"

namespace lockstep::tcp {

Backend backend() {
  const auto create = [](const GroupContext& context, const Deadline& deadline) {
    std::unique_ptr<wire::HostMemory> memory = shared_within_hosts(context, deadline);
    const int rank = context.identity.rank;
    // With host memory only the ranks of this rank's rail are dialled at once; other ranks are mostly reached through
    // it.
    std::vector<int> first = memory ? wire::ranks_of_rail(wire::hosts_of(context.roster, rank)) : std::vector<int>();
    for (int r = 0; !memory && r < static_cast<int>(context.roster.size()); ++r) {
      if (r != rank) first.push_back(r);
    }
    return wire::ProcessGroupWire::create("tcp", context, std::make_unique<WireTcp>(context, std::move(first)),
                                          deadline, wire::start_own_thread, std::move(memory));
  };
  return {"tcp", [](const GroupContext&) { return std::string(); }, create};
}

}  // namespace lockstep::tcp
