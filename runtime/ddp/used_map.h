// SPDX-License-Identifier: Apache-2.0
// UsedMap tells which parameters any rank used. For each parameter the UsedMap has a number that says whether the
// parameter was used. The numbers of the UsedMap lie in the arena after the gradients, and the ranks sum and divide the
// numbers like gradients.
//
// A parameter's use in a micro-batch without rows counts only if no rank had any rows, because one process that trains
// the whole global batch has no such micro-batch. The UsedMap writes a use without rows as the smallest normal float,
// and a use with rows as 1.
//
// On a device the UsedMap is copied to and from the arena through pinned memory, in the order of the compute stream.
// Only at() waits.
// Threads: only the Reducer's thread calls the functions of UsedMap.
// Failure: throws DeviceError.
#pragma once

#include <span>
#include <vector>

#include "lockstep/device/stream.h"
#include "runtime/ddp/gradient_memory.h"

namespace lockstep {

enum class Use : char { none, without_rows, with_rows };

class UsedMap {
 public:
  // `memory` must outlive this object.
  UsedMap(GradientMemory& memory, std::size_t parameters);

  // Writes this rank's use of each parameter to the arena at `offset`, before the ranks sum the gradients.
  void write(std::size_t offset, std::span<const Use> used);
  // Fetches the ranks' sums from the arena at `offset`, after the ranks have summed the gradients.
  void read(std::size_t offset);
  // Returns whether some rank used the parameter, according to the sums of the last read(). `divisor` is the number by
  // which the sums were divided, or 0 if the sums were not divided. On a device at() blocks the host until the sums
  // have arrived, and throws Timeout after `deadline`.
  bool at(std::size_t parameter, double divisor, const Deadline& deadline);

 private:
  // Copy holds pinned memory, and the event that the device reaches after a copy to or from the pinned memory.
  struct Copy {
    std::shared_ptr<void> memory;
    Event done;
    float* values() const { return static_cast<float*>(memory.get()); }
  };
  Copy& unused(std::vector<Copy>& copies);

  GradientMemory& memory_;
  std::vector<float> sums_;   // the divided sums of the last read() that has arrived
  std::vector<Copy> writes_;  // one copy for each step in flight
  std::vector<Copy> reads_;
  std::size_t awaited_ = 0;  // the index of the last read() in reads_
  bool is_awaited_ = false;
};

}  // namespace lockstep
