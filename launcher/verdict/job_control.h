// SPDX-License-Identifier: Apache-2.0
// One host's launcher reports here what becomes of its ranks, and gets orders. Behind it is the FailureArbiter: in
// this process (local_control.h), or on the job's first host (launcher/hosts).
//
// Main thread only. Nothing here waits, but for an answer of the job's store.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/rank_end.h"
#include "lockstep/base/deadline.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

struct Order {
  enum class Kind {
    say,             // `text`, as the launcher's own word
    detail,          // `text`, below what was said
    end_ranks,       // SIGTERM, and SIGKILL after the grace period; comes once. No rank is started after it
    pass_on,         // `signal`, to the ranks: somebody asks the job to stop
    kill,            // the ranks, at once: somebody insists
    stop_to_resize,  // SIGTERM, to those that handle it and so stop after a step
    take_stacks,     // of `rank`, by the launcher of its host, which answers with stacks_taken()
  };
  Kind kind = Kind::say;
  std::string text = {};
  int signal = 0;
  int rank = -1;
  int pid = 0;       // of the rank's process, which may be behind a wrapper; 0: not known
  int question = 0;  // 0: the verdict's, of a rank that hangs; else lockstep inspect's, for all of its threads
};

struct TakenStacks {
  int question = 0;  // Order's
  int rank = -1;
  std::vector<std::string> lines = {};  // empty: nothing can be told
};

class JobControl {
 public:
  virtual ~JobControl() = default;

  // A rank of this host has ended. What it reported before has been taken by then.
  virtual void rank_ended(RankEnd end) = 0;
  // The cause for which one of this host's ranks fails, as its launcher found out.
  virtual void heard(const Cause& cause) = 0;
  // Somebody has sent this process a signal that asks the job to end.
  virtual void signalled(int signal) = 0;
  virtual void stacks_taken(TakenStacks stacks) = 0;
  // Nothing of this host's ranks runs any more. `exit_code`: what this host's launcher has to complain of; 0 if
  // nothing.
  virtual void ranks_are_gone(int exit_code) = 0;

  // Readable when take_news() has something: reports of ranks, or what other hosts say.
  virtual int news_fd() const = 0;
  virtual void take_news() = 0;
  // When check_timers() is due; nothing while nothing is awaited.
  virtual std::optional<Deadline> due() const = 0;
  virtual void check_timers() = 0;

  // Since the last call, in order.
  virtual std::vector<Order> take_orders() = 0;
  // Nothing of the job runs on any host. True at some time after ranks_are_gone().
  virtual bool is_over() const = 0;
  // The job's exit code, once it is over.
  virtual int exit_code() const = 0;
  // Once it is over: the ranks are to be started again, after so long. Nothing: they are not.
  virtual std::optional<std::chrono::milliseconds> again() const = 0;
  // Ranks that have ended, as far as it is known here, on whichever host.
  virtual const std::vector<RankEnd>& ended() const = 0;
};

}  // namespace lockstep::launcher
