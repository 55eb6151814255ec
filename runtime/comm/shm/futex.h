// Sleeping on a word of shared memory, across processes.
//
// Not std::atomic::wait, whose futexes are private to a process, nor anything of pthread, which a death leaves locked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::shm {

// Sleeps while `word` holds `expected`, at most `limit`. May return early; look again. Never throws.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds limit);
// Wakes all who sleep on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace lockstep::shm
