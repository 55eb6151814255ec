// A small process that ends the job if the launcher is killed.
//
// A rank that is the launcher's direct child dies with it (PR_SET_PDEATHSIG). What a rank has started itself, such as
// the program behind `sh -c './train; true'`, does not: nothing that is killed with -9 can clean up. So the launcher
// forks this process before it does anything else. It holds the read end of a pipe on which each rank writes its
// process id before it becomes the program. When the pipe ends and nobody said that all is well, it kills every
// process of the ranks' process groups, but for those that the launcher has seen empty (the number may be somebody
// else's by now), and every process that was started with this job's LOCKSTEP_RUN_ID.
// docs/adr/0006-no-orphans.md has the alternatives.
#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/system.h"

namespace lockstep::launcher {

class Guardian {
 public:
  // Forks. Call it before the process has a second thread. Throws SystemError.
  explicit Guardian(const std::string& run_id);
  // Without all_is_well() before it, the guardian ends what there is of the job. Waits for it to leave.
  ~Guardian();
  // The process group of this rank has no process any more.
  void forget(pid_t group) const;
  // The job has ended and nothing of it is left.
  void all_is_well() const;
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }
  // Where a rank writes its process id, as the bytes of a pid_t.
  int registration_fd() const { return pipe_.get(); }

 private:
  void tell(pid_t word) const;

  pid_t pid_ = -1;
  UniqueFd pipe_;
};

}  // namespace lockstep::launcher
