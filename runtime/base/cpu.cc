// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/cgroup.h"

namespace lockstep {

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  const double quota = cgroup_cpu_quota(kCgroupRoot, own_cgroups());
  if (quota > 0) cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota))));
  return cores;
}

}  // namespace lockstep
