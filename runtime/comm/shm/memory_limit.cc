#include "runtime/comm/shm/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

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

// What is left below each limit, from the process's group up to the root: a parent's limit binds its children.
std::uint64_t left_in(const std::string& controller, std::string group, const char* limit_file,
                      const char* usage_file) {
  std::uint64_t left = kUnlimited;
  for (;;) {
    const auto limit = read_number(controller + group + limit_file);
    const auto usage = read_number(controller + group + usage_file);
    if (limit && usage) left = std::min(left, *limit > *usage ? *limit - *usage : 0);
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
      available = std::min(available, left_in(cgroup_root, group, "/memory.max", "/memory.current"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      available = std::min(available,
                           left_in(cgroup_root + "/memory", group, "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
    }
  }
  return available;
}

std::uint64_t available_memory() {
  return available_memory(read_file("/proc/meminfo"), read_file("/proc/self/cgroup"), "/sys/fs/cgroup");
}

}  // namespace lockstep::shm
