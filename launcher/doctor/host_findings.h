// SPDX-License-Identifier: Apache-2.0
// The resources that this host lets a rank have: kernel, cores, memory, descriptors, ports.
#pragma once

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

}  // namespace lockstep::launcher::doctor
