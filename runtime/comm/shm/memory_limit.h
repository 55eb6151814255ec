// How much memory may still be taken here.
//
// Asked before shared memory is committed: fallocate(2) on a memfd takes pages until the kernel kills processes, and
// whose is chance.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::shm {

// Bytes that can be had without swapping or killing: MemAvailable, cut by what the memory cgroups of this process
// leave, where the page cache counts as free in both.
std::uint64_t available_memory();

// The same from the text of /proc/meminfo and /proc/PID/cgroup, and the folder of the cgroup file systems.
std::uint64_t available_memory(const std::string& meminfo, const std::string& membership,
                               const std::string& cgroup_root);

}  // namespace lockstep::shm
