// SPDX-License-Identifier: Apache-2.0
// try_kernels() compares a device's kernels with the CPU's kernels: both run every operation once, on a little data.
// The command `lockstep doctor` runs try_kernels() to test a GPU on which lockstep's kernels have never run.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/device/device.h"

namespace lockstep {

struct KernelTrial {
  int operations = 0;  // the number of operations
  int compared = 0;    // the number that gave the CPU's result; fewer if time ran out
};

// Runs every operation on `device` and on the CPU, and begins no operation after `deadline`. Throws Error, which names
// the operation and the element, at the first difference. Throws BackendUnavailable if the device has no kernels, and
// DeviceError if the device fails.
LOCKSTEP_API KernelTrial try_kernels(DeviceId device, const Deadline& deadline);

}  // namespace lockstep
