// SPDX-License-Identifier: Apache-2.0
// Sleeping on a word of shared memory, across processes.
//
// Not std::atomic::wait, whose futexes are private to a process, nor anything of pthread, which a death leaves locked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lockstep::comm {

// Sleeps while the low 32 bits of `word` are those of `expected`, at most `limit`. May return early; look again. The
// word must not grow by 2^32 in that time. False if the limit passed. Never throws.
bool futex_wait(const std::atomic<std::uint64_t>& word, std::uint64_t expected, std::chrono::nanoseconds limit);
// Wakes all who sleep on `word`.
void futex_wake_all(const std::atomic<std::uint64_t>& word);

}  // namespace lockstep::comm
