// SPDX-License-Identifier: Apache-2.0
// A small process that ends the job if the launcher is killed.
// A rank that is the launcher's direct child dies with it (PR_SET_PDEATHSIG). A process that a rank has started, such
// as the program behind `sh -c './train; true'`, does not: a process that is killed with -9 can't clean up. So the
// launcher forks this process before it does anything else. The guardian holds the read end of a pipe on which each
// rank writes its process id before it becomes the program. If the pipe ends without a word that all is well, the
// guardian kills every process of the ranks' process groups, except for groups that the launcher has seen empty (their
// numbers may have been reused); every process that was started with this job's LOCKSTEP_RUN_ID; and every process that
// has inherited the job's life pipe, which setsid, `env -i` and a double fork leave open. A second guardian, which is
// not a child of the launcher, does the same without the groups, so that the job also ends if the launcher is killed
// together with all of its children. docs/adr/0006-ranks-end-with-their-launcher.md has the alternatives.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/base/system.h"

namespace lockstep::launcher {

class Guardian {
 public:
  // Marks that every process of the job inherits, unless it drops them.
  struct Marks {
    std::string variable;  // "NAME=value" in its environment, unique to this launcher's ranks
    int life_fd = -1;      // the read end of a pipe that only processes of the job inherit; closed here
    int life_end = -1;     // its write end, which only the launcher holds
  };
  // Forks. Call it before the process has a second thread. Throws SystemError.
  explicit Guardian(const Marks& marks);
  // Waits for the guardian to leave. Without disarm() before it, the guardian ends the job's processes.
  ~Guardian();
  // Forks a new guardian after this process has reaped the old one, and passes it `groups`, the ranks' process groups
  // that are not empty. Other threads may exist: the child allocates, reads /proc and kills, and needs only the
  // allocator's lock, which glibc leaves usable. Throws SystemError.
  void replace(const std::vector<pid_t>& groups);
  // The process group of this rank is empty.
  void forget(pid_t group) const;
  // The job has ended and none of its processes is left.
  void disarm() const;
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Descriptor on which a rank writes its process id, as the bytes of a pid_t.
  int registration_fd() const { return pipe_.get(); }

 private:
  void start();
  void tell(pid_t word) const;

  const Marks marks_;
  pid_t pid_ = -1;
  UniqueFd pipe_;
  Pipe second_;  // the launcher's ends of the second guardian's two pipes
};

}  // namespace lockstep::launcher
