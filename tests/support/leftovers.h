// SPDX-License-Identifier: Apache-2.0
// What a job has left behind: processes, listening ports, shared memory. Read from /proc and /dev/shm.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/wait_until.h"

namespace lockstep::testing {

struct LiveProcess {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  std::string name;                                // at most 15 characters
  std::map<std::string, std::string> environment;  // as it was started
};

// Processes that were started with the variable, zombies excepted: they are gone but for their exit code.
std::vector<LiveProcess> processes_with(std::string_view name, std::string_view value);

// As ps shows it: R, S, D, T, Z ...; '?' if there is no such process.
char process_state(pid_t pid);

// The ranks that run of this test's job, by number: those with RANK set whose program's name is `program`'s
// (all, if empty). A wrapper shell counts as a program of its own.
std::map<int, pid_t> live_ranks(std::string_view program = {});

// Sockets that `pids` listen on, each in its own network, as "127.0.0.1:41233 (inode 5)" or "unix @name (inode 6)".
std::set<std::string> listening_sockets(const std::vector<pid_t>& pids);
// Every listening socket of this host, in the same words.
std::set<std::string> listening_sockets();

// What this test's job, found by LOCKSTEP_TEST_JOB, has of this host; and later what is still there.
class Footprint {
 public:
  // Before the job starts. Programs named in `ignored` (mpirun) are not looked at.
  explicit Footprint(std::set<std::string> ignored = {});
  // While all of it runs: notes its processes and the sockets they listen on.
  void look();

  const std::vector<pid_t>& pids() const { return pids_; }
  const std::set<std::string>& sockets() const { return sockets_; }
  // Waits until no process of the job, no socket it listened on and no new entry of /dev/shm is there. What is still
  // there when the deadline passes, one per line; empty if nothing is.
  std::string left_after(const Deadline& deadline) const;

 private:
  std::string left_now() const;

  std::set<std::string> ignored_;
  std::set<std::string> shared_memory_;  // names in /dev/shm before the job
  std::vector<pid_t> pids_;
  std::set<std::string> sockets_;
};

// What is still there by then stays. A healthy job leaves nothing within a second or two; how fast is not asserted,
// since a machine that others share may stand still for longer.
Deadline leftover_deadline();

}  // namespace lockstep::testing
