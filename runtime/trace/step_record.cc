// SPDX-License-Identifier: Apache-2.0
#include "lockstep/trace/step_record.h"

#include <algorithm>

namespace lockstep::trace {

std::chrono::nanoseconds under_way_behind_backward(const StepRecord& record) {
  std::chrono::nanoseconds sum{};
  // Launches and ends are both in index order, so the union of the intervals grows at its end only.
  Time covered = record.begin;
  for (const BucketRecord& bucket : record.buckets) {
    const Time from = std::max(covered, bucket.launched);
    const Time to = std::min(bucket.finished, record.last_gradient_ready);
    if (to > from) sum += to - from;
    covered = std::max(covered, to);
  }
  return sum;
}

}  // namespace lockstep::trace
