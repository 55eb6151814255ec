// How much of this machine the process may use.
#pragma once

#include <string>

namespace lockstep {

// Cores this process may run on: the affinity mask, cut by the cgroup's CPU quota (v1 and v2), rounded up; at least 1.
int allowed_cores();

// The quota part alone, for tests and reports: cores granted by the cgroup files below `cgroup_root`, for the process
// whose /proc/PID/cgroup text is `membership`; 0 if there is no limit.
double cgroup_cpu_quota(const std::string& cgroup_root, const std::string& membership);

}  // namespace lockstep
