// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lockstep/device/stream.h"

namespace lockstep::testing {

// Puts a kernel into the stream whose assertion fails: every later call of CUDA on the device does too.
void fail_in_a_kernel(StreamView stream);

}  // namespace lockstep::testing
