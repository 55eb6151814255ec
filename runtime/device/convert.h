// SPDX-License-Identifier: Apache-2.0
// Floats of 16 bits made of wider ones, and wider ones of them, as a device does it (DeviceRuntime::convert): on the
// CPU, and as the pattern for kernels elsewhere.
#pragma once

#include "lockstep/device/buffer_view.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// InvalidArgument unless one side is float32 or float64, the other float16 or bfloat16, and both have as many elements.
LOCKSTEP_INTERNAL_API void check_convertible(const ConstBufferView& from, const BufferView& to);
// Rounded to nearest even, a float64 to float32 before.
LOCKSTEP_INTERNAL_API void convert_on_host(const ConstBufferView& from, const BufferView& to);

}  // namespace lockstep
