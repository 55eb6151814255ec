// SPDX-License-Identifier: Apache-2.0
// A device's kernels beside the CPU's, every operation once on a little data: what `lockstep doctor` asks of a GPU that
// nobody has seen these kernels on.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

struct KernelTrial {
  int operations = 0;  // that there are
  int compared = 0;    // that gave what the CPU gives; fewer where the time was over
};

// Begins no operation past the deadline. Throws Error, with the operation and the element, for the first one that
// differs; BackendUnavailable where the device has no kernels; DeviceError.
LOCKSTEP_API KernelTrial try_kernels(DeviceId device, const Deadline& deadline);

}  // namespace lockstep
