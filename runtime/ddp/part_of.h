// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "lockstep/device/buffer_view.h"

namespace lockstep {

// The part of `rank` in a bucket that is cut into `size` equal ones.
inline BufferView part_of(const BufferView& bucket, int rank, int size) {
  const std::int64_t count = bucket.count / size;
  auto* const data =
      static_cast<std::byte*>(bucket.data) + static_cast<std::size_t>(count * rank) * size_of(bucket.dtype);
  return {data, count, bucket.dtype, bucket.device};
}

}  // namespace lockstep
