// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/backend.h"

#include "runtime/comm/hosts/shared_within_hosts.h"
#include "runtime/comm/tcp/wire_tcp.h"
#include "runtime/comm/wire/process_group_wire.h"

namespace lockstep::tcp {

Backend backend() {
  const auto create = [](const GroupContext& context, const Deadline& deadline) {
    return wire::ProcessGroupWire::create("tcp", context, std::make_unique<WireTcp>(context), deadline,
                                          wire::start_own_thread, shared_within_hosts(context, deadline));
  };
  return {"tcp", [](const GroupContext&) { return std::string(); }, create};
}

}  // namespace lockstep::tcp
