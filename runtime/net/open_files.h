// SPDX-License-Identifier: Apache-2.0
// How many descriptors this process may have: each client of a server takes one.
#pragma once

#include <cstdint>

namespace lockstep::net {

struct OpenFilesLimit {
  std::uint64_t soft = 0;  // what holds
  std::uint64_t hard = 0;  // what this process may raise it to
  bool operator==(const OpenFilesLimit&) const = default;
};

OpenFilesLimit open_files_limit();
// Raises the soft limit as far as `wanted` or the hard one, for a process that is a server in the first place; a
// library must not. Returns what held before, for the children it starts: a program that uses select(2) breaks with
// descriptors above 1023. Throws SystemError.
OpenFilesLimit raise_open_files_limit(std::uint64_t wanted = UINT64_MAX);
// Sets it, as in a child. Async-signal-safe; false, with errno, if it can't.
bool set_open_files_limit(const OpenFilesLimit& limit) noexcept;

}  // namespace lockstep::net
