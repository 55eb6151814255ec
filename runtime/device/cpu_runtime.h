// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: one default stream, whose work is done when the call returns. Streams are null handles, events
// remember when they were recorded. No cache: memory goes back at once.
//
// Threads: any; nothing is shared but what the caller shares.
#pragma once

#include "lockstep/device/device_runtime.h"

namespace lockstep {

DeviceRuntime& cpu_runtime();

}  // namespace lockstep
