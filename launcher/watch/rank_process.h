// SPDX-License-Identifier: Apache-2.0
// One rank as the launcher sees it: a process, and the two streams that it writes.
#pragma once

#include <sys/types.h>

#include <optional>

#include "launcher/output/rank_output.h"
#include "launcher/process/exit_status.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd pidfd;
  RankOutput out;
  RankOutput err;
  std::optional<ExitStatus> ending;  // set once it has ended
  bool group_is_empty = false;       // its process group has no process any more

  bool running() const { return pid > 0 && !ending; }
};

}  // namespace lockstep::launcher
