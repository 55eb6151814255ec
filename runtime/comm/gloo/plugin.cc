// SPDX-License-Identifier: Apache-2.0
// What the core finds in liblockstep_gloo.so (comm/init/plugins.h).
#include "runtime/comm/plugin.h"
#include "runtime/comm/gloo/wire_gloo.h"
#include "runtime/comm/hosts/shared_within_hosts.h"
#include "runtime/comm/wire/process_group_wire.h"

LOCKSTEP_PLUGIN_STAMP

extern "C" void lockstep_plugin_backend(lockstep::Backend* backend) {
  using namespace lockstep;
  backend->name = "gloo";
  backend->why_not = [](const GroupContext&) { return std::string(); };
  backend->create = [](const GroupContext& context, const Deadline& deadline) {
    return wire::ProcessGroupWire::create("gloo", context, std::make_unique<gloo_backend::WireGloo>(context), deadline,
                                          wire::start_own_thread, shared_within_hosts(context, deadline));
  };
}
