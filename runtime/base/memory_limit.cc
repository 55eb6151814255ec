// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/base/cgroup.h"
#include "runtime/base/procfs.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

}  // namespace

std::optional<std::uint64_t> available_of_meminfo(std::string_view meminfo) {
  const auto name = meminfo.find("MemAvailable:");
  const auto digits = name == meminfo.npos ? name : meminfo.find_first_of("0123456789", name);
  if (digits == meminfo.npos) return std::nullopt;
  std::uint64_t kibibytes = 0;
  std::from_chars(meminfo.data() + digits, meminfo.data() + meminfo.size(), kibibytes);
  return kibibytes * 1024;
}

std::uint64_t available_memory(const std::string& meminfo, const std::string& membership,
                               const std::string& cgroup_root) {
  return std::min(available_of_meminfo(meminfo).value_or(kUnlimited),
                  cgroup_memory_left(cgroup_root, membership).value_or(kUnlimited));
}

std::uint64_t available_memory() {
  return available_memory(read_kernel_file("/proc/meminfo"), own_cgroups(), kCgroupRoot);
}

}  // namespace lockstep
