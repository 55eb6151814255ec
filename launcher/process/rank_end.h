// SPDX-License-Identifier: Apache-2.0
// How one rank ended, with all that a report about it says. The host of the rank may be another one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/exit_status.h"

namespace lockstep::launcher {

// So many lines of a failed rank's stderr are shown.
inline constexpr std::size_t kShownLines = 20;

// A rank's process, ended or not.
struct RankFacts {
  int rank = 0;
  std::string host = {};
  pid_t pid = 0;                             // 0: not known
  std::string log = {};                      // file of its stderr; empty: it goes to the console
  std::vector<std::string> last_lines = {};  // of its stderr, at most kShownLines
  // Processes that the kernel has killed for want of memory in the launcher's control group while the job ran; of a
  // rank that SIGKILL ended, else 0.
  std::int64_t memory_kills = 0;
  std::optional<std::int64_t> steps_done = {};  // job/step_board.h
};

struct RankEnd : RankFacts {
  ExitStatus ending = {};
  bool killed = false;  // by its launcher, which had waited for the grace period
};

}  // namespace lockstep::launcher
