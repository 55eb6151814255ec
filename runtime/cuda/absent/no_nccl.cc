// SPDX-License-Identifier: Apache-2.0
// The twin of runtime/comm/nccl where nccl.h was missing when this was built: a backend that says so.
#include "lockstep/base/error.h"
#include "runtime/comm/plugin.h"

extern "C" void lockstep_plugin_backend(lockstep::Backend* backend) {
  static const char* const reason =
      "backend 'nccl': this build is without it, since nccl.h was not found; install libnccl-dev (2.27 or newer) and "
      "build lockstep again";
  backend->name = "nccl";
  backend->must_agree = true;
  backend->why_not = [](const lockstep::GroupContext&) { return std::string(reason); };
  backend->create = [](const lockstep::GroupContext&,
                       const lockstep::Deadline&) -> std::shared_ptr<lockstep::ProcessGroup> {
    throw lockstep::BackendUnavailable(reason);
  };
}
