// SPDX-License-Identifier: Apache-2.0
// A device's kernels, each call of which is compared with the CPU's on copies of the same data: for a device that
// nobody has seen these kernels on yet. LOCKSTEP_KERNEL_CHECK=1 puts them before the device's own (kernels()).
//
// Every call waits for the device, and costs as much as the CPU takes. Each array of results may be off by a part of
// its own largest number, which depends on the operation; what has the CPU's bits must have them. The first call that
// differs is an Error that names the operation, its extents, the element, and both values.
//
// Threads: one at a time.
#pragma once

#include <memory>

#include "lockstep/base/environment.h"
#include "runtime/tensor/kernels.h"

namespace lockstep {

// The part of its largest number that a matrix product may be off by: more where LOCKSTEP_ALLOW_TF32 says so.
double products_may_differ(const Environment& environment);

// Both live as long as the result. `products`: as above.
std::unique_ptr<Kernels> checked_kernels(Kernels& device, Kernels& cpu, double products = 1e-4);

}  // namespace lockstep
