// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/host_findings.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>

#include "launcher/base/system.h"
#include "lockstep/base/error.h"
#include "runtime/base/cgroup.h"
#include "runtime/base/cpu.h"
#include "runtime/base/host.h"
#include "runtime/base/procfs.h"
#include "runtime/base/resource_limit.h"
#include "runtime/base/text.h"
#include "runtime/net/open_files.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kLimits = "limits";

// A single rank opens about thirty: streams, libraries, store, shared memory of its peers.
constexpr std::uint64_t kFewestFiles = 64;
constexpr std::uint64_t kCommonFiles = 1024;
constexpr std::uint64_t kLittleMemory = std::uint64_t{256} << 20;
constexpr std::uint64_t kNoMemory = std::uint64_t{32} << 20;

std::string first_line(const std::string& path) {
  const auto text = read_kernel_file(path);
  return text.substr(0, text.find('\n'));
}

std::string limit_text(std::uint64_t limit) { return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit); }

Finding open_files() {
  const auto limit = net::open_files_limit();
  Finding finding{kLimits, "open files", fmt::format("{} (hard {})", limit_text(limit.soft), limit_text(limit.hard))};
  if (limit.soft < kCommonFiles) {
    finding.health = limit.soft < kFewestFiles ? Health::problem : Health::note;
    finding.remedy = fmt::format("ulimit -n {}", limit_text(std::min(limit.hard, std::uint64_t{65536})));
    if (limit.hard < kCommonFiles) finding.remedy += ", the hard limit; root can raise that: ulimit -Hn 65536";
  }
  return finding;
}

Finding processes() {
  const auto limit = resource_limit(RLIMIT_NPROC).value_or(RLIM_INFINITY);
  return {kLimits, "processes and threads", fmt::format("{} for this user", limit_text(limit))};
}

Finding memory(const HostFolders& folders) {
  const auto available = available_of_meminfo(read_kernel_file(folders.proc + "/meminfo"));
  const auto limit = cgroup_memory_limit(folders.cgroup, read_kernel_file(folders.proc + "/self/cgroup"));
  Finding finding{kLimits, "memory",
                  fmt::format("{} available; cgroup limit {}", available ? readable_bytes(*available) : "unknown",
                              limit ? readable_bytes(*limit) : "none")};
  const auto least = std::min(available.value_or(~std::uint64_t{0}), limit.value_or(~std::uint64_t{0}));
  if (least < kLittleMemory) {
    finding.health = least < kNoMemory ? Health::problem : Health::note;
    finding.remedy = "end other programs, or raise the memory limit of the container or the job";
  }
  return finding;
}

Finding cores(const HostFolders& folders) {
  const double quota = cgroup_cpu_quota(folders.cgroup, read_kernel_file(folders.proc + "/self/cgroup"));
  cpu_set_t set;
  CPU_ZERO(&set);
  const int affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return {kLimits, "cores",
          fmt::format("{} allowed: {} by affinity of {} online, cgroup quota {}", allowed_cores(), affinity,
                      sysconf(_SC_NPROCESSORS_ONLN), quota > 0 ? fmt::format("{:.3g}", quota) : "none")};
}

Finding ports(const HostFolders& folders) {
  std::istringstream range(first_line(folders.proc + "/sys/net/ipv4/ip_local_port_range"));
  int low = 0;
  int high = 0;
  if (!(range >> low >> high))
    return {kLimits, "free ports are from", "unknown", Health::note,
            "see whether /proc is mounted, without subset=pid"};
  Finding finding{kLimits, "free ports are from", fmt::format("{} to {}", low, high)};
  if (high - low < 1000) {
    finding.health = Health::note;
    finding.remedy = "many ranks need many ports: run sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
  }
  return finding;
}

Finding boot() {
  try {
    return {kHost, "boot id", boot_id()};
  } catch (const Error& error) {
    return {kHost, "boot id", error.what(), Health::problem, "mount /proc in this container"};
  }
}

Finding kernel() {
  utsname name{};
  if (uname(&name) != 0) throw SystemError("uname", errno);
  Finding finding{kHost, "kernel", fmt::format("{} {}", name.sysname, name.release)};
  try {
    open_pidfd(getpid());
  } catch (const Error& error) {
    finding.value += fmt::format("; {}", error.what());
    finding.health = Health::note;
    finding.remedy = "lockstep run does not work here; start ranks by hand or with mpirun, or allow pidfd_open";
  }
  return finding;
}

}  // namespace

Findings host_findings(const HostFolders& folders) {
  return {{kHost, "name", host_name()},
          boot(),
          kernel(),
          cores(folders),
          memory(folders),
          open_files(),
          processes(),
          ports(folders)};
}

}  // namespace lockstep::launcher::doctor
