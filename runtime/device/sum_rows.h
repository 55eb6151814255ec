// SPDX-License-Identifier: Apache-2.0
// The sum of rows in a given tree, as a device takes it (DeviceRuntime::sum_rows): on the CPU, and as the pattern for
// kernels elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// InvalidArgument for a dtype that is no float's, and for merges that leave more or less than one sum.
LOCKSTEP_INTERNAL_API void check_summable(std::span<const std::uint8_t> merges, DType dtype);
LOCKSTEP_INTERNAL_API void sum_rows_on_host(const void* rows, std::ptrdiff_t stride,
                                            std::span<const std::uint8_t> merges, const BufferView& to);

}  // namespace lockstep
