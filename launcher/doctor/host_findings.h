// SPDX-License-Identifier: Apache-2.0
// The resources that this host offers to a rank: kernel, cores, memory, descriptors, ports.
#pragma once

#include <string>

#include "launcher/doctor/finding.h"

namespace lockstep::launcher::doctor {

// The folders that are examined; tests use others.
struct HostFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

Findings host_findings(const HostFolders& folders = {});

}  // namespace lockstep::launcher::doctor
