// SPDX-License-Identifier: Apache-2.0
// Compares a device's kernels with the CPU's kernels: runs every operation once, on a little data. `lockstep doctor`
// runs the trial on a GPU on which lockstep's kernels have never run.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

struct KernelTrial {
  int operations = 0;  // the number of operations
  int compared = 0;    // the number that gave the CPU's result; fewer if time ran out
};

// Runs the trial; begins no operation past the deadline. Throws Error for the first difference, with the operation and
// the element; BackendUnavailable if the device has no kernels; and DeviceError.
LOCKSTEP_API KernelTrial try_kernels(DeviceId device, const Deadline& deadline);

}  // namespace lockstep
