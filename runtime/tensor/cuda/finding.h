// SPDX-License-Identifier: Apache-2.0
// Where kernels say what they found wrong: one record in pinned memory, which the first that finds something writes.
// The host reads it once it has waited for the stream.
#pragma once

#include <cstdint>

#include "runtime/tensor/kernels.h"

namespace lockstep::cuda {

struct FindingRecord {
  std::int64_t is_there = 0;
  Finding finding = {};
};

}  // namespace lockstep::cuda
