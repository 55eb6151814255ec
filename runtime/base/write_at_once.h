// SPDX-License-Identifier: Apache-2.0
// write(2) for code that must not wait: a pipe that nobody reads and a paused terminal block their writers.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

// Writes as much of `bytes` as the descriptor takes at once, and returns how much that is. Fewer than all with errno:
// EAGAIN if it takes no more now. Whether the descriptor blocks (O_NONBLOCK) is left as it is, for it is shared with
// other processes; a file is waited for, as its disk does not stop reading. A reader that has gone is EPIPE, and no
// SIGPIPE. Async-signal-safe.
//
// A pipe takes up to PIPE_BUF bytes whole or not at all.
std::size_t write_at_once(int fd, std::string_view bytes) noexcept;

// write_at_once(), repeated for at most `milliseconds` until all is written. Async-signal-safe.
std::size_t write_within(int fd, std::string_view bytes, int milliseconds) noexcept;

}  // namespace lockstep
