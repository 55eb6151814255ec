// SPDX-License-Identifier: Apache-2.0
// A communication thread sleeps on its doorbell while the thread has nothing to do. A doorbell consists of a count of
// the ring() calls and an eventfd file. Any thread of this process may ring. If the count lies in shared memory,
// threads of other processes may also call ring(). The eventfd file lets the thread that owns the doorbell sleep until
// either the doorbell rings or a socket has data.
//
// No call of ring() is missed: the owner first sets `asleep` and then reads `rings`, while ring() first adds to `rings`
// and then reads `asleep`. All four operations are sequentially consistent. A thread that gets true from hear() sees
// the memory writes that other threads made before their calls of ring().
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

// A DoorbellButton rings a doorbell. Any thread may call ring(), in any process that has access to `words` and `file`.
struct DoorbellButton {
  DoorbellWords* words = nullptr;
  std::shared_ptr<const EventFd> file = {};

  LOCKSTEP_INTERNAL_API void ring() const;
};

// Through a Doorbell, the thread that owns the doorbell sleeps and learns of calls of ring(). One thread owns a
// Doorbell, but any thread may call ring(). If another thread calls hear(), the owner's next sleep_unless_rung()
// ignores all earlier calls of ring().
class Doorbell {
 public:
  // `words` must outlive this object. `words` may lie in memory that is shared with other processes, which can then
  // ring the doorbell.
  LOCKSTEP_INTERNAL_API explicit Doorbell(DoorbellWords& words,
                                          std::shared_ptr<const EventFd> file = std::make_shared<EventFd>());

  void ring() const { button_.ring(); }
  // Returns true if the doorbell was rung since the last hear().
  LOCKSTEP_INTERNAL_API bool hear();
  // Calls `sleep` unless the doorbell was rung since the last hear(). The function `sleep` must return when file()
  // becomes readable, and may also return at other events. If another thread calls ring() while `sleep` runs, file()
  // becomes readable.
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
