// Quotients as a device takes them (DeviceRuntime::divide): on the CPU, and as the pattern for kernels elsewhere.
#pragma once

#include <cstdint>

#include "runtime/device/buffer_view.h"

namespace lockstep {

// Every element over `divisor`; over 0 they stay. Floats are divided in float32 or wider, then rounded to nearest even;
// integers in 64 bits, towards zero.
void divide_on_host(void* data, std::int64_t count, DType dtype, std::int64_t divisor);

}  // namespace lockstep
