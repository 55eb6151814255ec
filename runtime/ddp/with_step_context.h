// SPDX-License-Identifier: Apache-2.0
// with_step_context() adds the step and the bucket to the error of a failed group. The cause of the error names the
// rank that failed and the reason, but only the caller of the group knows the step and the bucket.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/job/cause.h"

namespace lockstep {

struct StepContext {
  std::int64_t step = -1;
  int bucket = -1;        // the index of the bucket; -1 for no bucket
  std::string what = {};  // the place as text, such as "bucket 1 of 4"
};

// Returns call(). If call() throws PeerLost, Timeout or Mismatch, throws an error of the same type and cause, with the
// step and the bucket in the cause. The new error's message is like "step 3, bucket 1 of 4: <cause>". Any other error
// passes unchanged. `place` returns a StepContext.
template <typename Place, typename Call>
auto with_step_context(Place place, Call call) {
  try {
    return call();
  } catch (const Error& error) {
    const StepContext at = place();
    throw_again(error, fmt::format("step {}, {}: {}", at.step, at.what, error.what()), at.step, at.bucket);
  }
}

// Returns the part of `bucket` that belongs to `rank` when the bucket is cut into `size` equal parts.
inline BufferView part_of(const BufferView& bucket, int rank, int size) {
  const std::int64_t count = bucket.count / size;
  auto* const data =
      static_cast<std::byte*>(bucket.data) + static_cast<std::size_t>(count * rank) * size_of(bucket.dtype);
  return {data, count, bucket.dtype, bucket.device};
}

}  // namespace lockstep
