// What the job's store knows of its members, on its way to the launcher's main thread.
//
// Threads: put() any; the rest the main thread's.
#pragma once

#include <vector>

#include "runtime/base/cause.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

class CauseInbox {
 public:
  // Throws SystemError.
  CauseInbox();

  void put(const Cause& cause) EXCLUDES(mutex_);
  // Readable while causes wait.
  int fd() const { return event_.get(); }
  // In the order in which they came.
  std::vector<Cause> take() EXCLUDES(mutex_);

 private:
  UniqueFd event_;
  Mutex mutex_;
  std::vector<Cause> causes_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::launcher
