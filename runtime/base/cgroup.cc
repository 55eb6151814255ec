// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/cgroup.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

#include "runtime/base/procfs.h"

namespace lockstep {
namespace {

enum class Version { v1, v2 };

// Calls visit(folder, version) for each group whose limits of `controller` bind the process: its own group and all
// above, since a parent's limit binds its children. Inside a container the group's path may be the host's and lead
// nowhere here; the container's own limit is then at the root, which is always visited.
template <typename Visit>
void visit_groups(const std::string& root, const std::string& membership, std::string_view controller, Visit visit) {
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "0::/group" is version 2, "5:cpu,cpuacct:/group" is version 1.
    const auto first = line.find(':');
    const auto second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const Version version = controllers == ",," ? Version::v2 : Version::v1;
    if (version == Version::v1 && controllers.find("," + std::string(controller) + ",") == line.npos) continue;
    // A controller's name is a name of the mount whatever controllers share it.
    const std::string mount = version == Version::v2 ? root : root + "/" + std::string(controller);
    for (std::string group = line.substr(second + 1);;) {
      visit(mount + group, version);
      const auto slash = group.find_last_of('/');
      if (slash == group.npos) break;
      group.erase(slash);
    }
  }
}

// The first number of a file; nullopt if the file isn't there or says "max".
template <typename Number>
std::optional<Number> first_number(const std::string& path) {
  std::ifstream file(path);
  Number number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

double cpu_quota_of(const std::string& folder, Version version) {
  std::optional<double> quota;
  std::optional<double> period;
  if (version == Version::v1) {
    quota = first_number<double>(folder + "/cpu.cfs_quota_us");
    period = first_number<double>(folder + "/cpu.cfs_period_us");
  } else {
    std::ifstream file(folder + "/cpu.max");  // "QUOTA PERIOD", and "max PERIOD" without a limit
    if (double numbers[2]; file >> numbers[0] >> numbers[1]) {
      quota = numbers[0];
      period = numbers[1];
    }
  }
  return quota && period && *quota > 0 && *period > 0 ? *quota / *period : 0;
}

// Version 1 says "none" by a number near 2^63.
std::optional<std::uint64_t> memory_limit_of(const std::string& folder, Version version) {
  const auto limit =
      first_number<std::int64_t>(folder + (version == Version::v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit || *limit < 0 || *limit > (std::int64_t{1} << 60)) return std::nullopt;
  return static_cast<std::uint64_t>(*limit);
}

// Memory that counts as used but is given up before the limit refuses anything: the page cache and the kernel's own
// caches. A job that has read its data set would else seem to have no memory left. Shared memory is not among it.
std::uint64_t reclaimable_of(const std::string& folder, Version version) {
  // Names in memory.stat that count a group with its children.
  using Names = std::array<std::string_view, 3>;
  const Names names = version == Version::v2 ? Names{"inactive_file", "active_file", "slab_reclaimable"}
                                             : Names{"total_inactive_file", "total_active_file"};
  std::ifstream file(folder + "/memory.stat");
  std::uint64_t sum = 0;
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += bytes;
  }
  return sum;
}

std::optional<std::uint64_t> memory_left_of(const std::string& folder, Version version) {
  const auto limit = memory_limit_of(folder, version);
  const auto usage =
      first_number<std::uint64_t>(folder + (version == Version::v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !usage) return std::nullopt;
  const std::uint64_t bound = *usage - std::min(*usage, reclaimable_of(folder, version));
  return *limit > bound ? *limit - bound : 0;
}

// The kernel's count of a group; in version 2 it includes the groups below it.
std::optional<std::uint64_t> memory_kills_of(const std::string& folder, Version version) {
  std::ifstream file(folder + (version == Version::v2 ? "/memory.events" : "/memory.oom_control"));
  std::string name;
  for (std::uint64_t count = 0; file >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return std::nullopt;
}

// The smallest value that `read` returns for the groups; nullopt if it returns none.
template <typename Read>
std::optional<std::uint64_t> least(const std::string& root, const std::string& membership, Read read) {
  std::optional<std::uint64_t> result;
  visit_groups(root, membership, "memory", [&](const std::string& folder, Version version) {
    if (const auto bytes = read(folder, version)) result = std::min(result.value_or(*bytes), *bytes);
  });
  return result;
}

}  // namespace

std::string own_cgroups() { return read_kernel_file("/proc/self/cgroup"); }

double cgroup_cpu_quota(const std::string& root, const std::string& membership) {
  double result = 0;
  visit_groups(root, membership, "cpu", [&](const std::string& folder, Version version) {
    const double quota = cpu_quota_of(folder, version);
    if (quota > 0) result = result > 0 ? std::min(result, quota) : quota;
  });
  return result;
}

std::optional<std::uint64_t> cgroup_memory_limit(const std::string& root, const std::string& membership) {
  return least(root, membership, memory_limit_of);
}

std::optional<std::uint64_t> cgroup_memory_left(const std::string& root, const std::string& membership) {
  return least(root, membership, memory_left_of);
}

// Reads the own group alone: the counts of the groups above it include other jobs.
std::optional<std::uint64_t> cgroup_memory_kills(const std::string& root, const std::string& membership) {
  std::optional<std::uint64_t> kills;
  visit_groups(root, membership, "memory", [&](const std::string& folder, Version version) {
    if (!kills) kills = memory_kills_of(folder, version);
  });
  return kills;
}

}  // namespace lockstep
