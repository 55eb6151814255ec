// SPDX-License-Identifier: Apache-2.0
// The end of one rank, with all facts that a report about it states. The rank may be on another host.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.h"

namespace lockstep::launcher {

// Number of lines of a failed rank's stderr that are shown.
inline constexpr std::size_t kShownLines = 20;

// A rank's process, running or ended.
struct RankFacts {
  int rank = 0;
  std::string host = {};
  pid_t pid = 0;                             // 0: not known
  std::string log = {};                      // file of its stderr; empty: stderr goes to the console
  std::vector<std::string> last_lines = {};  // the end of its stderr, at most kShownLines
  // Processes that the kernel has killed for lack of memory in the launcher's control group while the job ran, for a
  // rank whose process or program SIGKILL may have ended; else 0.
  std::int64_t memory_kills = 0;
  std::optional<std::int64_t> steps_done = {};  // job/step_board.h
  std::optional<std::int64_t> saved_step = {};  // the same
};

struct RankEnd : RankFacts {
  ExitStatus ending = {};
  bool killed = false;  // its launcher killed it after the grace period
};

}  // namespace lockstep::launcher
