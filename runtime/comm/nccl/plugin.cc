// SPDX-License-Identifier: Apache-2.0
// NCCL's symbols that the core finds in liblockstep_cuda.so (comm/init/plugins.h).
#include "runtime/comm/plugin.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/comm/nccl/process_group_nccl.h"

namespace lockstep::nccl {
namespace {

// Reasons that this rank can see alone.
std::string why_not(const GroupContext& context) {
  try {
    DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
    const int count = runtime.count();
    if (count == 0) return fmt::format("backend 'nccl': {}", runtime.why_none());
    if (context.device.index >= count) {
      return fmt::format(
          "backend 'nccl': local rank {} takes {}, and this process sees {} GPU{}; start at most as many ranks per "
          "host "
          "as there are GPUs, set CUDA_VISIBLE_DEVICES, or to try several ranks on one GPU use lockstep run "
          "--oversubscribe-gpu",
          context.identity.local_rank, context.device.str(), count, count == 1 ? "" : "s");
    }
    api();
    return {};
  } catch (const Error& error) {
    return fmt::format("backend 'nccl': {}", error.what());
  }
}

}  // namespace
}  // namespace lockstep::nccl

extern "C" void lockstep_plugin_backend(lockstep::Backend* backend) {
  using namespace lockstep;
  backend->name = "nccl";
  backend->why_not = &nccl::why_not;
  backend->create = &nccl::ProcessGroupNccl::create;
}
