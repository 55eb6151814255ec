// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>
#include <vector>

namespace lockstep::testing {

// Calls body(0) to body(count - 1), each on a thread of its own, and returns when all have returned.
template <typename Body>
void on_threads(int count, const Body& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::testing
