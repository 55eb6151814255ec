// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::net {

OpenFilesLimit open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw SystemError("getrlimit(RLIMIT_NOFILE)", errno);
  return {limit.rlim_cur, limit.rlim_max};
}

OpenFilesLimit raise_open_files_limit(std::uint64_t wanted) {
  const OpenFilesLimit before = open_files_limit();
  const std::uint64_t raised = std::min(wanted, before.hard);
  if (before.soft < raised && !set_open_files_limit({raised, before.hard})) {
    throw SystemError(fmt::format("setrlimit(RLIMIT_NOFILE) from {} to {}", before.soft, raised), errno);
  }
  return before;
}

bool set_open_files_limit(const OpenFilesLimit& limit) noexcept {
  const rlimit wanted{limit.soft, limit.hard};
  return ::setrlimit(RLIMIT_NOFILE, &wanted) == 0;
}

}  // namespace lockstep::net
