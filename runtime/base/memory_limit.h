// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take.
//
// For callers that commit memory which nothing refuses in time: fallocate(2) on a memfd takes pages until the kernel
// kills processes, and it picks any of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// MemAvailable of a text of /proc/meminfo, in bytes; nullopt if the text lacks it.
std::optional<std::uint64_t> available_of_meminfo(std::string_view meminfo);

// Bytes that can be had without swapping or killing: MemAvailable, or less if the memory cgroups of this process leave
// less. The page cache counts as free in both.
std::uint64_t available_memory();

// available_memory() from the texts of /proc/meminfo and /proc/PID/cgroup, and the folder of the cgroup file systems.
std::uint64_t available_memory(const std::string& meminfo, const std::string& membership,
                               const std::string& cgroup_root);

}  // namespace lockstep
