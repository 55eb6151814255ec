// SPDX-License-Identifier: Apache-2.0
// Which GPU is a rank's.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/device/device.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/init/settings.h"
#include "runtime/rendezvous/identity/identity.h"

namespace lockstep {

// Throws BackendUnavailable with what is missing for the device that the settings ask for, before it waits for anybody.
// `asked` is what the user wrote: "backend 'nccl'".
void require_device(const InitSettings& settings, const std::string& asked);

struct VisibleGpus {
  int count = 0;
  std::function<std::string(int)> uuid;  // of the one with this index
};
// Without an index: the one with the number of the local rank. A process that sees a single one takes that: schedulers
// hand out one per rank so. More ranks on this host than GPUs are refused with BackendUnavailable, unless `share`: then
// they go round. Whether two ranks have come to one GPU in another way, only the ranks together can tell: comm/nccl.
DeviceId rank_device(const InitSettings& settings, const rendezvous::Identity& identity, const VisibleGpus& gpus,
                     bool share);
// The same with the GPUs of this process and LOCKSTEP_OVERSUBSCRIBE_GPU=1.
DeviceId rank_device(const InitSettings& settings, const rendezvous::Identity& identity,
                     const Environment& environment);

struct DeviceChoice {
  DeviceId device = {};
  std::string why_not_gpu = {};  // of "auto" that came to be the CPU
};
// "auto", of ranks that have met: each takes the GPU that "cuda" would give it, where every rank has one and one of
// `candidates`, by name or "auto" as in choose_backend, serves them there; else all take the CPU. Any other device is
// rank_device's, and nobody is asked. `context` has no device yet.
DeviceChoice choose_device(const InitSettings& settings, std::string_view backend, std::span<const Backend> candidates,
                           GroupContext context, const Environment& environment, const Deadline& deadline);

}  // namespace lockstep
