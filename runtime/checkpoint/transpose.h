// SPDX-License-Identifier: Apache-2.0
// Transposes between a matrix's layout in memory and that in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/internal_api.h"

namespace lockstep::checkpoint {

// In place: [rows, columns] row-major becomes [columns, rows]. Elements are of `width` bytes. Takes as much memory
// again meanwhile.
LOCKSTEP_INTERNAL_API void transpose(std::span<std::byte> matrix, std::int64_t rows, std::int64_t columns,
                                     std::size_t width);

}  // namespace lockstep::checkpoint
