// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <ctime>

namespace lockstep::comm {

// The kernel compares 32 bits: the low half, where the address of the whole is its address too.
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::endian::native == std::endian::little);

bool futex_wait(const std::atomic<std::uint64_t>& word, std::uint64_t expected, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec timeout{seconds.count(), (limit - seconds).count()};
  // EAGAIN (it changed), EINTR and ETIMEDOUT all mean: look again.
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT, static_cast<std::uint32_t>(expected), &timeout, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

void futex_wake_all(const std::atomic<std::uint64_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace lockstep::comm
