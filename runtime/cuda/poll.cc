// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/poll.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lockstep::cuda {

bool poll(const std::function<bool()>& done, const Deadline& deadline) {
  constexpr int kLooks = 100;
  constexpr std::chrono::microseconds kLongest{500};
  std::chrono::microseconds pause{10};
  for (int looks = 1; !done(); ++looks) {
    if (deadline.expired()) return false;
    if (looks < kLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(kLongest, pause * 2);
    }
  }
  return true;
}

}  // namespace lockstep::cuda
