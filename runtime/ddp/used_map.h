// Which parameters any rank used: a number for each, which travels in the arena behind the gradients and is summed with
// them.
//
// On a device it goes there and back through pinned memory, in the order of the compute stream; only at() waits.
// Threads: the Reducer's. Failure: DeviceError.
#pragma once

#include <span>
#include <vector>

#include "runtime/ddp/gradient_memory.h"
#include "runtime/device/stream.h"

namespace lockstep {

class UsedMap {
 public:
  // `memory` outlives it.
  UsedMap(GradientMemory& memory, std::size_t parameters);

  // This rank's part, by parameter, to the `offset` in the arena from which it is reduced.
  void write(std::size_t offset, std::span<const char> used);
  // After the reduction: fetches what came of it.
  void read(std::size_t offset);
  // Whether some rank used the parameter, as of the last read(). On a device blocks the host until it is here: Timeout.
  bool at(std::size_t parameter, const Deadline& deadline);

 private:
  // Pinned memory, and the mark behind the copy that uses it.
  struct Copy {
    std::shared_ptr<void> memory;
    Event done;
    float* values() const { return static_cast<float*>(memory.get()); }
  };
  Copy& unused(std::vector<Copy>& copies);

  GradientMemory& memory_;
  std::vector<char> used_by_some_;  // of the last read() that is here
  std::vector<Copy> writes_;        // as many as steps are under way at once
  std::vector<Copy> reads_;
  std::size_t awaited_ = 0;  // the copy of the last read()
  bool is_awaited_ = false;
};

}  // namespace lockstep
