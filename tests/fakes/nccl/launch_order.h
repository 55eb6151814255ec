// SPDX-License-Identifier: Apache-2.0
// Finds two communicators of one device that are launched in different orders on different ranks: on a GPU each may
// hold the place that the other waits for, for ever.
//
// With each launch a rank notes in the communicator's file how many launches of its device's other communicators came
// before it. Of two communicators X and Y the orders are crossed if on rank r the k-th of Y is before the n-th of X and
// on rank s behind it, and both ranks have launched both. Whichever of these four launches is last finds it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fakes/nccl/world.h"

namespace lockstep::fake_nccl {

class LaunchOrder {
 public:
  static LaunchOrder& get();
  // `rank` of the communicator `id`, which meets in `world`, launches its next operation on `device`. What is crossed,
  // or nothing.
  std::string launched(const std::string& id, World& world, int rank, int device);
  // The communicator has ended: what it has not launched is no fault. What it has launched came before whatever is
  // launched from now on.
  void forget(World& world);

 private:
  struct Known {
    std::string id;
    World* world = nullptr;
    int rank = 0;
    int device = 0;
  };
  struct Ended {
    std::uint64_t communicator = 0;  // as in Launches::Record
    std::uint64_t launches = 0;
    int device = 0;
  };
  std::mutex mutex_;
  std::vector<Known> all_;
  std::vector<Ended> ended_;  // the newest first
};

}  // namespace lockstep::fake_nccl
