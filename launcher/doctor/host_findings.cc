#include "launcher/doctor/host_findings.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "launcher/system.h"
#include "runtime/base/cpu.h"
#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/host.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kHost = "host";
constexpr const char* kLimits = "limits";

// A rank alone opens about thirty: streams, libraries, store, shared memory of its peers.
constexpr rlim_t kFewestFiles = 64;
constexpr rlim_t kCommonFiles = 1024;
constexpr std::uint64_t kLittleMemory = std::uint64_t{256} << 20;
constexpr std::uint64_t kNoMemory = std::uint64_t{32} << 20;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string first_line(const std::string& path) {
  const auto text = text_of(path);
  return text.substr(0, text.find('\n'));
}

std::string limit_text(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit); }

rlimit limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) throw SystemError("getrlimit", errno);
  return limit;
}

Finding open_files() {
  const auto limit = limit_of(RLIMIT_NOFILE);
  Finding finding{kLimits, "open files",
                  fmt::format("{} (hard {})", limit_text(limit.rlim_cur), limit_text(limit.rlim_max))};
  if (limit.rlim_cur < kCommonFiles) {
    finding.health = limit.rlim_cur < kFewestFiles ? Health::problem : Health::note;
    finding.remedy = fmt::format("ulimit -n {}", limit_text(std::min(limit.rlim_max, rlim_t{65536})));
    if (limit.rlim_max < kCommonFiles) finding.remedy += ", the hard limit; root can raise that: ulimit -Hn 65536";
  }
  return finding;
}

Finding processes() {
  const auto limit = limit_of(RLIMIT_NPROC);
  return {kLimits, "processes and threads", fmt::format("{} for this user", limit_text(limit.rlim_cur))};
}

Finding locked_memory() {
  const auto limit = limit_of(RLIMIT_MEMLOCK);
  return {kLimits, "locked memory",
          limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                          : readable_bytes(limit.rlim_cur) + " (enough for the CPU; RDMA wants more)"};
}

Finding shared_memory(const std::string& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) {
    return {kLimits, folder, fmt::format("not there ({}); lockstep doesn't use it", errno_text(errno))};
  }
  return {kLimits, folder,
          fmt::format("{}, {} free; lockstep doesn't use it, its shared memory has no name and counts as memory",
                      readable_bytes(std::uint64_t{status.f_blocks} * status.f_frsize),
                      readable_bytes(std::uint64_t{status.f_bavail} * status.f_frsize))};
}

// Of /proc/meminfo, in bytes.
std::optional<std::uint64_t> available_memory(const std::string& meminfo) {
  constexpr std::string_view kName = "MemAvailable:";
  const auto at = meminfo.find(kName);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(meminfo.c_str() + at + kName.size(), nullptr, 10) << 10;
}

Finding memory(const HostFolders& folders) {
  const auto available = available_memory(text_of(folders.proc + "/meminfo"));
  const auto limit = cgroup_memory_limit(folders.cgroup, text_of(folders.proc + "/self/cgroup"));
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
  const double quota = cgroup_cpu_quota(folders.cgroup, text_of(folders.proc + "/self/cgroup"));
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
  if (!(range >> low >> high)) return {kLimits, "free ports are from", "unknown", Health::note, "is /proc mounted?"};
  Finding finding{kLimits, "free ports are from", fmt::format("{} to {}", low, high)};
  if (high - low < 1000) {
    finding.health = Health::note;
    finding.remedy = "many ranks want many: sysctl -w net.ipv4.ip_local_port_range='32768 60999'";
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

// The limit that `file` in `folder` states; nothing if it states none. Version 1 says "none" by a number near 2^63.
std::optional<std::uint64_t> stated_limit(const std::string& folder, const char* file) {
  const auto value = parse_int(first_line(folder + "/" + file));
  if (!value || *value < 0 || *value > (std::int64_t{1} << 60)) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

}  // namespace

std::optional<std::uint64_t> cgroup_memory_limit(const std::string& cgroup_root, const std::string& membership) {
  std::optional<std::uint64_t> tightest;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "0::/group" is version 2, "9:memory:/group" is version 1.
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const auto root = controllers.empty() ? cgroup_root : cgroup_root + "/memory";
    const char* file = controllers.empty() ? "memory.max" : "memory.limit_in_bytes";
    // Up to the root: a parent's limit binds its children, and in a container the path may be the host's.
    for (auto group = line.substr(second + 1);;) {
      if (const auto limit = stated_limit(root + group, file)) tightest = std::min(tightest.value_or(*limit), *limit);
      const auto slash = group.find_last_of('/');
      if (slash == std::string::npos) break;
      group.erase(slash);
    }
  }
  return tightest;
}

std::string readable_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Findings host_findings(const HostFolders& folders) {
  const auto congestion = first_line(folders.proc + "/sys/net/ipv4/tcp_congestion_control");
  return {
      {kHost, "name", host_name()},
      boot(),
      kernel(),
      {kHost, "TCP congestion control", congestion.empty() ? "unknown" : congestion},
      cores(folders),
      memory(folders),
      shared_memory(folders.shm),
      open_files(),
      processes(),
      locked_memory(),
      ports(folders),
  };
}

}  // namespace lockstep::launcher::doctor
