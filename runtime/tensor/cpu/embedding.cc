// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {

std::int64_t first_bad_index(const std::int64_t* indices, std::int64_t count, std::int64_t limit, std::int64_t ignore) {
  for (std::int64_t i = 0; i < count; ++i) {
    if ((indices[i] < 0 || indices[i] >= limit) && indices[i] != ignore) return i;
  }
  return -1;
}

void embedding(float* out, const float* table, const std::int64_t* indices, std::int64_t count, std::int64_t columns) {
  if (columns == 0) return;
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * columns, table + indices[i] * columns, static_cast<std::size_t>(columns) * sizeof(float));
  }
}

LOCKSTEP_CLONES void embedding_backward(Into dtable, const float* dy, const std::int64_t* indices, std::int64_t count,
                                        std::int64_t table_rows, std::int64_t columns) {
  if (!dtable.add) fill(dtable.data, 0.0f, table_rows * columns);
  // In the order of the positions, so that the sum is always the same.
  for (std::int64_t i = 0; i < count; ++i) {
    float* target = dtable.data + indices[i] * columns;
    const float* source = dy + i * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] += source[c];
  }
}

}  // namespace lockstep::cpu
