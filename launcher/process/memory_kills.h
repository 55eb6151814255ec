// SPDX-License-Identifier: Apache-2.0
// The number of processes that the kernel has killed for lack of memory since the job began, from the counter of this
// process's control group, which includes its ranks. The counter rises before the killed process is seen to end.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/cgroup.h"

namespace lockstep::launcher {

class MemoryKills {
 public:
  // Returns 0 also if no control group counts the kills.
  std::int64_t since_start() const {
    const std::uint64_t now = count();
    return now > at_start_ ? static_cast<std::int64_t>(now - at_start_) : 0;
  }

 private:
  std::uint64_t count() const { return cgroup_memory_kills(kCgroupRoot, membership_).value_or(0); }

  const std::string membership_ = own_cgroups();
  const std::uint64_t at_start_ = count();
};

}  // namespace lockstep::launcher
