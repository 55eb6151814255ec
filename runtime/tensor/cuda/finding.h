// SPDX-License-Identifier: Apache-2.0
// Where kernels say what they found wrong: one record in pinned memory, which the first that finds something writes.
// The host may look while kernels run: `is_there` goes up behind the finding, and down when the host has taken it.
#pragma once

#include <cstdint>

#include "runtime/tensor/kernels.h"

namespace lockstep::cuda {

struct FindingRecord {
  std::int64_t is_there = 0;
  Finding finding = {};
};

}  // namespace lockstep::cuda
