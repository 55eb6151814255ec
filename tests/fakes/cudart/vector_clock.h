// SPDX-License-Identifier: Apache-2.0
// What is known to be done: of each stream, how many of its operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace lockstep::fake_cuda {

class VectorClock {
 public:
  bool covers(std::uint32_t stream, std::uint64_t number) const {
    const auto found = done_.find(stream);
    return found != done_.end() && found->second >= number;
  }
  void set(std::uint32_t stream, std::uint64_t number) { done_[stream] = number; }
  void join(const VectorClock& other) {
    for (const auto& [stream, number] : other.done_) {
      auto& own = done_[stream];
      own = std::max(own, number);
    }
  }

 private:
  std::map<std::uint32_t, std::uint64_t> done_;
};

}  // namespace lockstep::fake_cuda
