#include "runtime/base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

// The smallest limit on the way from the process's own group up to the root: a parent's quota binds its children.
// Inside a container the group's path may be the host's and lead nowhere here; the container's own limit is then at the
// root, which is always looked at.
template <typename ReadQuota>
double tightest(const std::string& controller_root, std::string group, ReadQuota read_quota) {
  double tightest = 0;
  for (;;) {
    const double quota = read_quota(controller_root + group);
    if (quota > 0) tightest = tightest > 0 ? std::min(tightest, quota) : quota;
    const auto slash = group.find_last_of('/');
    if (slash == std::string::npos) return tightest;
    group.erase(slash);
  }
}

double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string limit;
  double period = 0;
  if (!(file >> limit >> period) || limit == "max" || period <= 0) return 0;
  return std::strtod(limit.c_str(), nullptr) / period;
}

double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

}  // namespace

double cgroup_cpu_quota(const std::string& cgroup_root, const std::string& membership) {
  double result = 0;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "0::/group" is version 2, "5:cpu,cpuacct:/group" is version 1.
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    double quota = 0;
    if (controllers == ",,") {
      quota = tightest(cgroup_root, group, quota_v2);
    } else if (controllers.find(",cpu,") != std::string::npos) {
      // "cpu" is a name of the mount whatever controllers share it.
      quota = tightest(cgroup_root + "/cpu", group, quota_v1);
    }
    if (quota > 0) result = result > 0 ? std::min(result, quota) : quota;
  }
  return result;
}

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  std::ifstream file("/proc/self/cgroup");
  const std::string membership((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const double quota = cgroup_cpu_quota("/sys/fs/cgroup", membership);
  if (quota > 0) cores = std::min(cores, std::max(1, static_cast<int>(std::ceil(quota))));
  return cores;
}

}  // namespace lockstep
