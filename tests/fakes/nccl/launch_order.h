// SPDX-License-Identifier: Apache-2.0
// Finds two communicators of one device that are launched in different orders on different ranks: on a GPU each may
// hold the place that the other waits for, for ever. Of ranks that are threads of one process, each with its device.
//
// Of two communicators X and Y the orders are crossed if on one device the k-th of Y is before the n-th of X and on
// another behind it, and both have launched both. Whichever of these four launches is last finds it.
//
// Threads: any.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::fake_nccl {

class LaunchOrder {
 public:
  static LaunchOrder& get();
  // The communicator `id` launches its next operation on `device`. What is crossed, or nothing.
  std::string launched(const std::string& id, int device);
  // The communicator has ended there: what it has not launched is no fault.
  void forget(const std::string& id, int device);

 private:
  using Launches = std::vector<std::string>;  // by the communicator's id, in order
  std::mutex mutex_;
  std::map<int, Launches> by_device_;
};

}  // namespace lockstep::fake_nccl
