// SPDX-License-Identifier: Apache-2.0
// The interface through which one host's launcher reports events of its ranks and gets orders. Behind it is the
// FailureArbiter: in this process (launcher/run/local_control.h), or on the job's first host (launcher/hosts).
//
// Main thread only. No call waits, except for an answer of the job's store.
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
    say,             // prints `text` as the launcher's message
    detail,          // prints `text` below the last message
    end_ranks,       // SIGTERM, and SIGKILL after the grace period; ordered once. No rank starts afterwards
    pass_on,         // `signal` to the ranks: a user or scheduler asks the job to stop
    kill,            // SIGKILL to the ranks at once: a second request to stop
    stop_to_resize,  // SIGTERM to the ranks that handle it, and so stop after a step
    take_stacks,     // stacks of `rank`, from the launcher of its host, which answers with stacks_taken()
  };
  Kind kind = Kind::say;
  std::string text = {};
  int signal = 0;
  int rank = -1;
  int pid = 0;  // the rank's process, which may be behind a wrapper; 0: not known
  // 0: asked by the verdict, about a rank that hangs; else by lockstep inspect, about all of its threads
  int question = 0;
};

struct TakenStacks {
  int question = 0;  // Order::question
  int rank = -1;
  std::vector<std::string> lines = {};  // empty: the stacks could not be taken
};

class JobControl {
 public:
  virtual ~JobControl() = default;

  // A rank of this host has ended. Its earlier reports have been taken by then.
  virtual void rank_ended(RankEnd end) = 0;
  // Reports a cause, found by this host's launcher, for which one of its ranks fails.
  virtual void heard(const Cause& cause) = 0;
  // This process has received a signal that asks the job to end.
  virtual void signalled(int signal) = 0;
  virtual void stacks_taken(TakenStacks stacks) = 0;
  // None of this host's ranks' processes runs any more. `exit_code` is that of the launcher's own problems on this
  // host; 0 if there are none.
  virtual void ranks_are_gone(int exit_code) = 0;

  // Descriptor that is readable when take_news() has news: reports of ranks, or messages of other hosts.
  virtual int news_fd() const = 0;
  virtual void take_news() = 0;
  // Time at which check_timers() is due; nullopt if it is not.
  virtual std::optional<Deadline> due() const = 0;
  virtual void check_timers() = 0;

  // Returns the orders since the last call, in order.
  virtual std::vector<Order> take_orders() = 0;
  // Returns true when none of the job's processes runs on any host, which happens some time after ranks_are_gone().
  virtual bool is_over() const = 0;
  // The job's exit code, once it is over.
  virtual int exit_code() const = 0;
  // Once the job's start is over: the pause before the ranks are started again; nullopt: they are not.
  virtual std::optional<std::chrono::milliseconds> again() const = 0;
  // A signal that asks the job to end, if it came after again() was decided: the ranks must not be started again.
  virtual std::optional<int> late_stop() const = 0;
  // Ranks on any host that have ended, as far as this host knows.
  virtual const std::vector<RankEnd>& ended() const = 0;
};

}  // namespace lockstep::launcher
