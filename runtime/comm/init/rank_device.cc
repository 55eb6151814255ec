// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/rank_device.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep {

void require_device(const InitSettings& settings, const std::string& asked) {
  if (settings.device.kind != DeviceKind::cuda) return;
  std::string problem;
  try {
    DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
    const int count = runtime.count();
    if (count == 0) {
      problem = runtime.why_none();
    } else if (settings.device.index >= count) {
      problem = fmt::format("this process sees {} GPU{}; use an index below {}, and look at CUDA_VISIBLE_DEVICES",
                            count, count == 1 ? "" : "s", count);
    }
  } catch (const BackendUnavailable& error) {
    problem = error.what();
  }
  if (problem.empty()) return;
  throw BackendUnavailable(fmt::format("init_process_group: {} was asked for: {}", asked, problem));
}

DeviceId rank_device(const InitSettings& settings, const rendezvous::Identity& identity, const VisibleGpus& gpus,
                     bool share) {
  DeviceId device = settings.device;
  if (device.kind != DeviceKind::cuda || !settings.device_by_local_rank) return device;
  device.index = gpus.count == 1 ? 0 : identity.local_rank;
  if (device.index < gpus.count && (gpus.count == 1 || identity.local_world_size <= gpus.count)) return device;
  if (share) {
    device.index = identity.local_rank % gpus.count;
    return device;
  }
  if (identity.local_world_size <= gpus.count) {
    throw BackendUnavailable(fmt::format(
        "init_process_group: device 'cuda' was asked for: local rank {} takes cuda:{}, and this process sees {} GPUs; "
        "look at LOCAL_RANK and CUDA_VISIBLE_DEVICES, or name the device (device = \"cuda:0\")",
        identity.local_rank, identity.local_rank, gpus.count));
  }
  throw BackendUnavailable(fmt::format(
      "init_process_group: device 'cuda' was asked for: {} ranks of this host see {} GPUs, so local ranks 0 and {} "
      "would share cuda:0 ({}); start at most {} ranks here (lockstep run --nproc-per-node gpu), or for tests let them "
      "share (lockstep run --oversubscribe-gpu)",
      identity.local_world_size, gpus.count, gpus.count, gpus.uuid(0), gpus.count));
}

DeviceId rank_device(const InitSettings& settings, const rendezvous::Identity& identity,
                     const Environment& environment) {
  if (settings.device.kind == DeviceKind::cpu) return settings.device;
  DeviceRuntime& runtime = device_runtime(settings.device.kind);
  const VisibleGpus gpus{runtime.count(), [&runtime](int index) {
                           return runtime.info({DeviceKind::cuda, index}).uuid;
                         }};
  return rank_device(settings, identity, gpus, environment.get("LOCKSTEP_OVERSUBSCRIBE_GPU") == "1");
}

}  // namespace lockstep
