// SPDX-License-Identifier: Apache-2.0
// System calls on descriptors, done to the end: a signal ends none of them (EINTR), and neither does a partial result.
#pragma once

#include <cerrno>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "runtime/base/internal_api.h"

namespace lockstep {

// Calls `call` until it succeeds or fails with another errno than EINTR, and returns its last result. Async-signal-safe
// if `call` is.
template <typename Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Writes `bytes`, to a descriptor that does not block as far as it takes them. Returns how many were written: fewer
// than all with errno, EAGAIN among others.
LOCKSTEP_INTERNAL_API std::size_t write_all(int fd, std::string_view bytes) noexcept;
// Appends the bytes up to the file's end to `text`, at most `most`. False, with errno, if reading fails.
bool read_all(int fd, std::string& text, std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace lockstep
