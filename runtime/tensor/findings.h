// SPDX-License-Identifier: Apache-2.0
// Errors in the contents of tensors, in the same words on every device.
#pragma once

#include "runtime/tensor/kernels.h"

namespace lockstep {

// InvalidArgument for an index, Error for a norm.
[[noreturn]] void throw_finding(const Finding& finding);
// Throws what the device has found so far.
void throw_findings(Kernels& kernels);

}  // namespace lockstep
