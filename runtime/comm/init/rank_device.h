// SPDX-License-Identifier: Apache-2.0
// Which GPU is a rank's.
#pragma once

#include <functional>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/device/device.h"
#include "runtime/comm/init/settings.h"
#include "runtime/rendezvous/identity.h"

namespace lockstep {

// What is missing for the device that the settings ask for is said before anybody is waited for: BackendUnavailable.
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

}  // namespace lockstep
