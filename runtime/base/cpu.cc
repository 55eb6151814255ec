// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/cpu.h"

#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

int leave_openmp_place() {
  // Looked up: the OpenMP runtime is there if a library or the program uses it.
  const auto function = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
  const auto places = reinterpret_cast<int (*)()>(function("omp_get_num_places"));
  const auto current = reinterpret_cast<int (*)()>(function("omp_get_place_num"));
  const auto count = reinterpret_cast<int (*)(int)>(function("omp_get_place_num_procs"));
  const auto ids = reinterpret_cast<void (*)(int, int*)>(function("omp_get_place_proc_ids"));
  if (places == nullptr || current == nullptr || count == nullptr || ids == nullptr) return 0;
  cpu_set_t own, place, all;
  CPU_ZERO(&own);
  CPU_ZERO(&place);
  CPU_ZERO(&all);
  for (int at = 0; at < places(); ++at) {
    std::vector<int> processors(static_cast<std::size_t>(std::max(0, count(at))));
    ids(at, processors.data());
    for (const int processor : processors) {
      CPU_SET(processor, &all);
      if (at == current()) CPU_SET(processor, &place);
    }
  }
  const bool is_bound = sched_getaffinity(0, sizeof(own), &own) == 0 && CPU_EQUAL(&own, &place);
  return is_bound && !CPU_EQUAL(&own, &all) && sched_setaffinity(0, sizeof(all), &all) == 0 ? CPU_COUNT(&all) : 0;
}

}  // namespace lockstep
