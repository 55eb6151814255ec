// SPDX-License-Identifier: Apache-2.0
// Limits of this process on a resource (getrlimit), for messages that name the limit that was met.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

// The soft limit of RLIMIT_..., in its own unit; nullopt without a limit.
std::optional<std::uint64_t> resource_limit(int resource);

// Whether a file may have so many bytes. A write or an allocation beyond the limit (ulimit -f) would end the process
// with SIGXFSZ, also of a file in memory.
bool may_file_have(std::uint64_t bytes);

// The limit that an errno value is of, "'ulimit -n' allows 64"; empty if it is of none that is set here.
std::string limit_behind(int error_number);

// The limits that keep a process from getting one more thread, with their values here and the settings that raise them.
std::string thread_limits();

}  // namespace lockstep
