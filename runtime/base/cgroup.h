// SPDX-License-Identifier: Apache-2.0
// The limits of this process's control groups, version 1 and 2.
//
// The functions with arguments read the cgroup file systems below `root` (/sys/fs/cgroup), for the process whose
// /proc/PID/cgroup text is `membership`; the doctor and tests give them other places.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

inline constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

// The text of /proc/self/cgroup; empty if it can't be read.
std::string own_cgroups();

// Cores that the CPU quota grants; 0 if there is no quota.
double cgroup_cpu_quota(const std::string& root, const std::string& membership);
// The tightest memory limit, in bytes; nullopt without a limit.
std::optional<std::uint64_t> cgroup_memory_limit(const std::string& root, const std::string& membership);
// Bytes that may still be taken below every memory limit, where the page cache counts as free; nullopt without a limit.
std::optional<std::uint64_t> cgroup_memory_left(const std::string& root, const std::string& membership);
// Processes that the kernel has killed in the process's own group for want of memory, or because a limit of the group's
// was reached; nullopt if the group does not count them.
std::optional<std::uint64_t> cgroup_memory_kills(const std::string& root, const std::string& membership);

}  // namespace lockstep
