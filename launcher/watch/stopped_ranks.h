// SPDX-License-Identifier: Apache-2.0
// Which ranks are stopped (SIGSTOP, Ctrl-Z, SIGTTIN), and for how long. Pure: the time is passed in. One thread.
//
// Time counts only while the launcher itself runs: Ctrl-Z stops it with all of its ranks, and nobody is to blame then.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/observed_clock.h"

namespace lockstep::launcher {

struct StoppedProcess {
  pid_t pid = 0;
  std::string name = {};
  int signal = 0;  // that stopped it; 0: not known, as of a process that is not the launcher's own child
};

class StoppedRanks {
 public:
  // A process that is stopped for longer is said. As long as a rank may be silent (membership/membership_table.h).
  static constexpr std::chrono::seconds kPatience{2};

  enum class News {
    none,
    stopped,  // for kPatience; once each time
    goes_on,  // after it was said
  };

  // `longest_gap`: what counts at most of the time between two looks.
  explicit StoppedRanks(std::chrono::nanoseconds longest_gap) : clock_(longest_gap) {}

  // A look begins. see() follows for each rank that runs.
  void observe(ObservedClock::Time now) { clock_.observe(now); }
  // `is_stopped`: at this look.
  News see(int rank, bool is_stopped);
  // The length of the current stop; zero if the rank is not stopped.
  std::chrono::nanoseconds stopped_for(int rank) const;

 private:
  struct Stop {
    std::chrono::nanoseconds since{0};
    bool said = false;
  };
  ObservedClock clock_;
  std::map<int, Stop> stops_;
};

// "rank 1 (host n1, pid 4711) is stopped (SIGSTOP) for 2.1 s of 2.0 s allowed; ...": what it is and what to do.
// `process` is the rank's own, or one that its end hangs on. `ends_job`: the job ends for it; else it is waited for.
std::string describe_stop(const std::string& rank, pid_t rank_pid, const StoppedProcess& process,
                          std::chrono::duration<double> stopped_for, bool ends_job);

// The first process that is stopped, and traced by nobody, of those that a rank's end hangs on: the one that the
// launcher started (a wrapper such as sh, or the program itself), and those between it and `member`, the process that
// is a member of the job. Where no member is below it (0: none has registered): all that is below.
std::optional<StoppedProcess> find_stopped(pid_t started, pid_t member);

}  // namespace lockstep::launcher
