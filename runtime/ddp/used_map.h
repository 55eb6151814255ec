// SPDX-License-Identifier: Apache-2.0
// Tells which parameters any rank used: a number for each, which travels in the arena after the gradients and is summed
// and divided with them.
//
// A use in a micro-batch without rows counts only if no rank had any: one process on the global batch would not have
// seen it. So it travels as the smallest normal number, which a real use outweighs.
//
// On a device the map is copied there and back through pinned memory, in the order of the compute stream; only at()
// waits.
// Threads: the Reducer's.
// Failure: DeviceError.
#pragma once

#include <span>
#include <vector>

#include "lockstep/device/stream.h"
#include "runtime/ddp/gradient_memory.h"

namespace lockstep {

enum class Use : char { none, without_rows, with_rows };

class UsedMap {
 public:
  // `memory` outlives it.
  UsedMap(GradientMemory& memory, std::size_t parameters);

  // Writes this rank's part, by parameter, to `offset` in the arena, from which it is reduced.
  void write(std::size_t offset, std::span<const Use> used);
  // Fetches the result, after the reduction.
  void read(std::size_t offset);
  // Whether some rank used the parameter, by the last read(). The sum was divided by `divisor`, or not divided if that
  // is 0. On a device it blocks the host until the result is here: Timeout.
  bool at(std::size_t parameter, double divisor, const Deadline& deadline);

 private:
  // Pinned memory, and the mark after the copy that uses it.
  struct Copy {
    std::shared_ptr<void> memory;
    Event done;
    float* values() const { return static_cast<float*>(memory.get()); }
  };
  Copy& unused(std::vector<Copy>& copies);

  GradientMemory& memory_;
  std::vector<float> sums_;   // divided, of the last read() that is here
  std::vector<Copy> writes_;  // as many as there are steps in flight at once
  std::vector<Copy> reads_;
  std::size_t awaited_ = 0;  // the copy of the last read()
  bool is_awaited_ = false;
};

}  // namespace lockstep
