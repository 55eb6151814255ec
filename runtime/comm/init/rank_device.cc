// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/rank_device.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/comm/init/agree.h"

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
        "correct LOCAL_RANK or CUDA_VISIBLE_DEVICES, or name the device (device = \"cuda:0\")",
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

namespace {

// Empty if this rank can compute on a GPU, which goes into the context.
std::string why_no_gpu(const InitSettings& settings, std::string_view backend, std::span<const Backend> candidates,
                       GroupContext& context, const Environment& environment) {
  InitSettings wish = settings;
  wish.device = {DeviceKind::cuda, 0};
  wish.device_by_local_rank = true;
  try {
    DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
    if (runtime.count() == 0) return runtime.why_none();
    context.device = rank_device(wish, context.identity, environment);
  } catch (const BackendUnavailable& error) {
    return error.what();
  }
  std::string reason = fmt::format("backend '{}' computes on the CPU", backend);
  for (const Backend& candidate : candidates) {
    if (candidate.device != context.device.kind || (backend != "auto" && backend != candidate.name)) continue;
    reason = candidate.why_not(context);
    if (reason.empty()) break;
  }
  return reason;
}

}  // namespace

DeviceChoice choose_device(const InitSettings& settings, std::string_view backend, std::span<const Backend> candidates,
                           GroupContext context, const Environment& environment, const Deadline& deadline) {
  if (!settings.device_is_auto) return {.device = rank_device(settings, context.identity, environment)};
  std::string own = why_no_gpu(settings, backend, candidates, context, environment);
  const auto agreed = agree_on_reasons("device", {{"cuda", std::move(own)}}, context, deadline);
  if (agreed.front().why_not.empty()) return {.device = context.device};
  return {.device = {}, .why_not_gpu = agreed.front().why_not};
}

}  // namespace lockstep
