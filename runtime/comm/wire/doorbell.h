// SPDX-License-Identifier: Apache-2.0
// What a communication thread sleeps on while it has nothing to do: a count that anybody adds to, of this process or,
// where it lies in memory that they share, of another one.
//
// No ring is missed: the sleeper first says that it sleeps and then reads the count; a ringer first adds to the count
// and then reads whether anybody sleeps. All four are in the one order of sequentially consistent operations. What was
// written before a ring is seen by the wait() that it ends.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/base/deadline.h"
#include "runtime/base/internal_api.h"

namespace lockstep::wire {

struct alignas(64) DoorbellWords {
  std::atomic<std::uint64_t> rings;
  std::atomic<std::uint64_t> asleep;  // 1 while the owner sleeps, or is about to

  // Any thread, any process.
  LOCKSTEP_INTERNAL_API void ring();
};

class Doorbell {
 public:
  // `words` outlives it; other processes may ring them.
  explicit Doorbell(DoorbellWords& words) : words_(words) {}

  // Any thread.
  void ring() { words_.ring(); }
  // Blocks until it has been rung since the last wait(), or until the deadline. One thread.
  LOCKSTEP_INTERNAL_API void wait(const Deadline& deadline);

 private:
  DoorbellWords& words_;
  std::uint64_t heard_ = 0;
};

}  // namespace lockstep::wire
