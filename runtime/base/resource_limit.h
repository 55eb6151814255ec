// SPDX-License-Identifier: Apache-2.0
// Limits of this process on a resource (getrlimit), for messages that name the limit that was met.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

// The rest says how much memory this process may still take, for callers that commit memory which nothing refuses in
// time: fallocate(2) on a memfd takes pages until the kernel kills processes, and it picks any of them.

// MemAvailable of a text of /proc/meminfo, in bytes; nullopt if the text lacks it.
std::optional<std::uint64_t> available_of_meminfo(std::string_view meminfo);

// Bytes that can be had without swapping or killing: MemAvailable, or less if the memory cgroups of this process leave
// less. The page cache counts as free in both.
std::uint64_t available_memory();

// available_memory() from the texts of /proc/meminfo and /proc/PID/cgroup, and the folder of the cgroup file systems.
std::uint64_t available_memory(const std::string& meminfo, const std::string& membership,
                               const std::string& cgroup_root);

}  // namespace lockstep
