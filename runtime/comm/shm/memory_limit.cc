#include "runtime/comm/shm/memory_limit.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace lockstep::shm {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file of one number; nothing if it isn't there or says "max".
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return {};
}

// Where a version of cgroups keeps its numbers, below the folder of a group.
struct Names {
  const char* limit;
  const char* usage;
  std::array<std::string_view, 3> reclaimable;  // of memory.stat, with the group's children
};
constexpr Names kVersion1{
    "/memory.limit_in_bytes", "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr Names kVersion2{"/memory.max", "/memory.current", {"inactive_file", "active_file", "slab_reclaimable"}};

// What counts as used but is given up before the limit refuses anything: the page cache and the kernel's own caches. A
// job that has read its data set would else seem to have no memory left. Shared memory is not among it.
std::uint64_t reclaimable_in(const std::string& folder, const Names& names) {
  std::ifstream file(folder + "/memory.stat");
  std::uint64_t sum = 0;
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;) {
    if (std::find(names.reclaimable.begin(), names.reclaimable.end(), name) != names.reclaimable.end()) sum += bytes;
  }
  return sum;
}

// What is left below each limit, from the process's group up to the root: a parent's limit binds its children.
std::uint64_t left_in(const std::string& controller, std::string group, const Names& names) {
  std::uint64_t left = kUnlimited;
  for (;;) {
    const std::string folder = controller + group;
    const auto limit = read_number(folder + names.limit);
    const auto usage = read_number(folder + names.usage);
    if (limit && usage) {
      const std::uint64_t bound = *usage - std::min(*usage, reclaimable_in(folder, names));
      left = std::min(left, *limit > bound ? *limit - bound : 0);
    }
    if (group.empty() || group == "/") return left;
    group.erase(group.find_last_of('/'));
  }
}

}  // namespace

std::uint64_t available_memory(const std::string& meminfo, const std::string& membership,
                               const std::string& cgroup_root) {
  std::uint64_t available = kUnlimited;
  std::istringstream words(meminfo);
  for (std::string word; words >> word;) {
    std::uint64_t kilobytes = 0;
    if (word == "MemAvailable:" && words >> kilobytes) available = kilobytes * 1024;
  }
  // "0::/group" is version 2, "5:memory:/group" version 1.
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      available = std::min(available, left_in(cgroup_root, group, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      available = std::min(available, left_in(cgroup_root + "/memory", group, kVersion1));
    }
  }
  return available;
}

std::uint64_t available_memory() {
  return available_memory(read_file("/proc/meminfo"), read_file("/proc/self/cgroup"), "/sys/fs/cgroup");
}

}  // namespace lockstep::shm
