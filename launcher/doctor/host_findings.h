// What this host lets a rank have: kernel, cores, memory, descriptors, ports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/doctor/finding.h"

namespace lockstep::launcher::doctor {

// Where to look; other places in tests.
struct HostFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string shm = "/dev/shm";
};

Findings host_findings(const HostFolders& folders = {});

// The tightest memory limit of the cgroup that `membership` (the text of /proc/PID/cgroup) names and those above it, in
// version 1 or 2; nothing if there is none.
std::optional<std::uint64_t> cgroup_memory_limit(const std::string& cgroup_root, const std::string& membership);

// "1.5 GiB".
std::string readable_bytes(std::uint64_t bytes);

}  // namespace lockstep::launcher::doctor
