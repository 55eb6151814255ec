// SPDX-License-Identifier: Apache-2.0
// Whether the kernel has killed for want of memory since the job began: the count of this process's control group, in
// which its ranks are. It rises before the killed process is seen to end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/cgroup.h"

namespace lockstep::launcher {

class MemoryKills {
 public:
  // The cgroup file systems below `root`, for a process whose /proc/PID/cgroup text is `membership`.
  explicit MemoryKills(std::string root = kCgroupRoot, std::string membership = own_cgroups())
      : root_(std::move(root)), membership_(std::move(membership)), at_start_(count()) {}

  // 0 also where no control group counts them.
  std::int64_t since_start() const {
    const std::uint64_t now = count();
    return now > at_start_ ? static_cast<std::int64_t>(now - at_start_) : 0;
  }

 private:
  std::uint64_t count() const { return cgroup_memory_kills(root_, membership_).value_or(0); }

  std::string root_;
  std::string membership_;
  std::uint64_t at_start_;
};

}  // namespace lockstep::launcher
