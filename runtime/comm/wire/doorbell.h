// SPDX-License-Identifier: Apache-2.0
// A communication thread sleeps on its doorbell while the thread has nothing to do. A doorbell is a count and a file.
// Any thread of this process may add to the count, and threads of other processes may if the count lies in shared
// memory. With the file the owner can sleep on its sockets and its doorbell together.
//
// No ring is missed: the sleeper first writes that it sleeps and then reads the count, while a ringer first adds to the
// count and then reads whether the owner sleeps. All four operations are sequentially consistent. A thread that hears a
// ring sees the writes that came before the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/base/event_fd.h"
#include "runtime/base/internal_api.h"

namespace lockstep::wire {

struct alignas(64) DoorbellWords {
  std::atomic<std::uint64_t> rings;
  std::atomic<std::uint64_t> asleep;  // 1 while the owner sleeps or is about to sleep
};

// A DoorbellButton rings a doorbell. Any thread may call ring(), in any process that has both members.
struct DoorbellButton {
  DoorbellWords* words = nullptr;
  std::shared_ptr<const EventFd> file = {};

  LOCKSTEP_INTERNAL_API void ring() const;
};

// A Doorbell is the owner's end of a doorbell. One thread owns a Doorbell, but any thread may call ring(). A ring that
// another thread has heard does not keep the owner awake.
class Doorbell {
 public:
  // `words` must outlive this object, and other processes may ring `words`.
  LOCKSTEP_INTERNAL_API explicit Doorbell(DoorbellWords& words,
                                          std::shared_ptr<const EventFd> file = std::make_shared<EventFd>());

  void ring() const { button_.ring(); }
  // Returns true if the bell was rung since the last hear().
  LOCKSTEP_INTERNAL_API bool hear();
  // Calls `sleep`, which waits for file() and other events, unless the bell was rung since the last hear(). A ring
  // during the call makes file() readable.
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
