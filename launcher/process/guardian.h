// SPDX-License-Identifier: Apache-2.0
// A small process that ends the job if the launcher is killed.
//
// A rank that is the launcher's direct child dies with it (PR_SET_PDEATHSIG). What a rank has started itself, such as
// the program behind `sh -c './train; true'`, does not: nothing that is killed with -9 can clean up. So the launcher
// forks this process before it does anything else. It holds the read end of a pipe on which each rank writes its
// process id before it becomes the program. When the pipe ends and nobody said that all is well, it kills every
// process of the ranks' process groups, but for those that the launcher has seen empty (the number may be somebody
// else's by now), every process that was started with this job's LOCKSTEP_RUN_ID, and every one that has inherited the
// job's life pipe: setsid, `env -i` and a double fork leave that open. A second guardian, which is not a child
// of the launcher, does the same without the groups, so that the job also ends if the launcher is killed together with
// all of its children.
// docs/adr/0006-ranks-end-with-their-launcher.md has the alternatives.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/base/system.h"

namespace lockstep::launcher {

class Guardian {
 public:
  // What every process of the job has of it, unless it drops it.
  struct Marks {
    std::string variable;  // "NAME=value" in its environment: of this launcher's ranks, and no other's
    int life_fd = -1;      // the read end of a pipe that all inherit and nobody else has; closed here
    int life_end = -1;     // and its write end, which the launcher alone holds
  };
  // Forks. Call it before the process has a second thread. Throws SystemError.
  explicit Guardian(const Marks& marks);
  // Without all_is_well() before it, the guardian ends what there is of the job. Waits for it to leave.
  ~Guardian();
  // Forks another one in its place, once this process has reaped it: it is told of `groups`, the ranks' process groups
  // that are not empty. Other threads may exist: the child allocates, reads /proc and kills, and needs no lock but the
  // allocator's, which glibc leaves usable. Throws SystemError.
  void replace(const std::vector<pid_t>& groups);
  // The process group of this rank has no process any more.
  void forget(pid_t group) const;
  // The job has ended and nothing of it is left.
  void disarm() const;
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Where a rank writes its process id, as the bytes of a pid_t.
  int registration_fd() const { return pipe_.get(); }

 private:
  void start();
  void tell(pid_t word) const;

  const Marks marks_;
  pid_t pid_ = -1;
  UniqueFd pipe_;
  Pipe second_;  // the launcher's ends of two pipes of the second guardian's
};

}  // namespace lockstep::launcher
