// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/resource_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>

#include "runtime/base/cgroup.h"
#include "runtime/base/procfs.h"

namespace lockstep {
namespace {

std::string in_words(int resource, std::uint64_t unit, const char* unit_name) {
  const auto limit = resource_limit(resource);
  return limit ? fmt::format("{}{}", *limit / unit, unit_name) : "unlimited";
}

std::string of_memory(const char* flag, int resource) {
  return resource_limit(resource) ? fmt::format("'ulimit {}' allows {}", flag, in_words(resource, 1024, " KiB")) : "";
}

}  // namespace

std::optional<std::uint64_t> resource_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return limit.rlim_cur;
}

bool may_file_have(std::uint64_t bytes) { return bytes <= resource_limit(RLIMIT_FSIZE).value_or(RLIM_INFINITY); }

std::string limit_behind(int error_number) {
  switch (error_number) {
    case EMFILE: return fmt::format("'ulimit -n' allows {}", in_words(RLIMIT_NOFILE, 1, ""));
    case ENFILE: return "the host's limit is fs.file-max";
    case ENOMEM: return of_memory("-v", RLIMIT_AS);
    case EFBIG: return of_memory("-f", RLIMIT_FSIZE);
    default: return {};
  }
}

std::string thread_limits() {
  return fmt::format(
      "raise the limit that is met: processes and threads of this user ('ulimit -u', {} here), of the container "
      "(--pids-limit, pids.max), or address space ('ulimit -v', {} here, of which a thread takes its stack's 'ulimit "
      "-s', "
      "{} here)",
      in_words(RLIMIT_NPROC, 1, ""), in_words(RLIMIT_AS, 1024, " KiB"), in_words(RLIMIT_STACK, 1024, " KiB"));
}

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
