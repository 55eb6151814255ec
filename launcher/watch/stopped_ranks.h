// SPDX-License-Identifier: Apache-2.0
// Ranks that are stopped (SIGSTOP, Ctrl-Z, SIGTTIN), and for how long. Pure: the time is a parameter. One thread.
//
// Time counts only while the launcher itself runs: Ctrl-Z stops it with all of its ranks, and that is no rank's fault.
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
  int signal = 0;  // the signal that stopped it; 0: not known, as for a process that is not the launcher's own child
};

class StoppedRanks {
 public:
  // A longer stop is reported. It is the time for which a rank may be silent (membership/membership_table.h).
  static constexpr std::chrono::seconds kPatience{2};

  enum class News {
    none,
    stopped,  // it has been stopped for kPatience; returned once for each stop
    goes_on,  // it continues after such a report
  };

  // `longest_gap` is the most that the time between two looks counts.
  explicit StoppedRanks(std::chrono::nanoseconds longest_gap) : clock_(longest_gap) {}

  // Begins a look. Then call see() for each rank that runs.
  void observe(ObservedClock::Time now) { clock_.observe(now); }
  // `is_stopped` is the state at this look.
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

// Returns "rank 1 (host n1, pid 4711) is stopped (SIGSTOP) for 2.1 s of 2.0 s allowed; ...", with the remedy. `process`
// is the rank's own, or one on which its end depends. `ends_job`: the job ends because of it; else the job waits.
std::string describe_stop(const std::string& rank, pid_t rank_pid, const StoppedProcess& process,
                          std::chrono::duration<double> stopped_for, bool ends_job);

// Returns the first process that is stopped, and not traced, among those on which a rank's end depends: the one that
// the launcher started (a wrapper such as sh, or the program itself), and those between it and `member`, the process
// that is a member of the job. If no member is below it (0: none has registered), all its descendants count.
std::optional<StoppedProcess> find_stopped(pid_t started, pid_t member);

}  // namespace lockstep::launcher
