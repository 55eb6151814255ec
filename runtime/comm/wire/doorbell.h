// SPDX-License-Identifier: Apache-2.0
// A communication thread sleeps on its doorbell while it has nothing to do. A doorbell is a count to which any thread
// adds, of this process or, if it lies in shared memory, of another one; and a file, so that the thread can sleep on
// its sockets too.
//
// No ring is missed: the sleeper first writes that it sleeps and then reads the count; a ringer first adds to the count
// and then reads whether the owner sleeps. All four operations are in the one order of sequentially consistent
// operations. A thread that hears a ring sees the writes before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/base/event_fd.h"
#include "runtime/base/internal_api.h"

namespace lockstep::wire {

struct alignas(64) DoorbellWords {
  std::atomic<std::uint64_t> rings;
  std::atomic<std::uint64_t> asleep;  // 1 while the owner sleeps, or is about to
};

// The ringers' end of a doorbell. Any thread, any process that has both.
struct DoorbellButton {
  DoorbellWords* words = nullptr;
  std::shared_ptr<const EventFd> file = {};

  LOCKSTEP_INTERNAL_API void ring() const;
};

// The owner's end of a doorbell. One thread, except ring(): any. A ring that another thread hears meanwhile does not
// end a sleep.
class Doorbell {
 public:
  // `words` outlives it; other processes may ring them.
  LOCKSTEP_INTERNAL_API explicit Doorbell(DoorbellWords& words,
                                          std::shared_ptr<const EventFd> file = std::make_shared<EventFd>());

  void ring() const { button_.ring(); }
  // True if it was rung since it was last heard.
  LOCKSTEP_INTERNAL_API bool hear();
  // Calls `sleep`, which waits for file() and other events, unless the bell was rung since it was last heard. A ring
  // from now on makes file() readable.
  template <typename Sleep>
  void sleep_unless_rung(Sleep sleep) {
    button_.words->asleep.store(1, std::memory_order_seq_cst);
    if (button_.words->rings.load(std::memory_order_seq_cst) == heard_.load()) sleep();
    button_.words->asleep.store(0, std::memory_order_relaxed);
    button_.file->clear();
  }
  int file() const { return button_.file->fd(); }

 private:
  const DoorbellButton button_;
  std::atomic<std::uint64_t> heard_{0};
};

}  // namespace lockstep::wire
