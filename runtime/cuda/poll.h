// SPDX-License-Identifier: Apache-2.0
// The wait for the device: CUDA's own has no deadline.
//
// Threads: any.
#pragma once

#include <functional>

#include "lockstep/base/deadline.h"

namespace lockstep::cuda {

// Asks `done` until it says yes. Short work is met by the first looks, long work costs no core. False once the deadline
// has passed.
bool poll(const std::function<bool()>& done, const Deadline& deadline);

}  // namespace lockstep::cuda
