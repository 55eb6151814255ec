// SPDX-License-Identifier: Apache-2.0
// The symbols that the core finds in liblockstep_mpi.so (comm/init/plugins.h).
#include "runtime/comm/plugin.h"

#include "runtime/comm/mpi/mpi_process.h"
#include "runtime/comm/mpi/wire_mpi.h"
#include "runtime/comm/wire/process_group_wire.h"

LOCKSTEP_PLUGIN_STAMP

extern "C" void lockstep_plugin_backend(lockstep::Backend* backend) {
  using namespace lockstep;
  backend->name = "mpi";
  backend->why_not = [](const GroupContext&) { return mpi_backend::why_not_again(); };
  backend->create = [](const GroupContext& context, const Deadline& deadline) {
    return wire::ProcessGroupWire::create("mpi", context, std::make_unique<mpi_backend::WireMpi>(context), deadline,
                                          &mpi_backend::run_on_mpi_thread);
  };
}
