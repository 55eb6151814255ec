// SPDX-License-Identifier: Apache-2.0
// Compares a device's kernels with the CPU's, every operation once on a little data: `lockstep doctor` runs it on a GPU
// on which these kernels have never run.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

struct KernelTrial {
  int operations = 0;  // the number of operations
  int compared = 0;    // operations that gave the CPU's result; fewer if the time was over
};

// Runs the trial; begins no operation past the deadline. Throws Error, with the operation and the element, for the
// first one that differs; BackendUnavailable if the device has no kernels; DeviceError.
LOCKSTEP_API KernelTrial try_kernels(DeviceId device, const Deadline& deadline);

}  // namespace lockstep
