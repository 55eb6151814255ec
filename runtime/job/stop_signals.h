// SPDX-License-Identifier: Apache-2.0
// Keeps the signals that ask this process to stop in its own time, for the code that polls.
//
// The handlers make only async-signal-safe calls: they note the first signal, start a kernel timer (timer_settime) and
// call the handler that was there before. The timer sends the process its own signal again; no thread waits for it.
//
// A second signal of one kind, unless it is the launcher's, ends the process by that signal's default action, and so
// does the timer, after a line on stderr. A signal within kOneRequest of the first of its kind is the same request:
// timeout(1) signals its child and then the child's group.
//
// Threads: the constructor and destructor any, one at a time; everything else any. Fork: a child ends by the first
// signal, as without handlers. They run on a stack of their own in the thread that called the constructor and in those
// that compute with our tensors or LibTorch (signal_stack.h).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep {

// SIGTERM, SIGINT, SIGUSR1: sent by Slurm and Kubernetes, by a terminal, and by schedulers that are told to send a
// signal ahead.
std::vector<int> default_stop_signals();

// How long after a signal no step of the training may end: LOCKSTEP_STOP_TIMEOUT, else 25 s. InvalidArgument.
std::chrono::nanoseconds stop_timeout(const Environment& environment);

// While one lives the handlers are installed; after the last one those from before are there again. A signal that is
// ignored, as SIGINT in a script's background job, stays ignored.
class StopSignals {
 public:
  static constexpr std::chrono::milliseconds kOneRequest{200};

  struct Options {
    std::vector<int> signals = default_stop_signals();
    std::chrono::nanoseconds timeout = std::chrono::seconds(25);  // above 0
    std::string who = {};                                         // for the timer's line: "rank 2"
    // Process whose second signal of a kind changes nothing; 0: none. `lockstep run` ends the remaining processes of a
    // failed job by SIGTERM, perhaps after the SIGTERM that it passed on; it insists by SIGKILL.
    pid_t launcher = 0;
  };
  // The last one's timeout and name count. InvalidArgument for a signal that can't be handled. SystemError.
  explicit StopSignals(const Options& options);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The first signal that came while one lived; 0: none.
  static int first() noexcept;
  // The process has stopped its training: the timer stops, and a first signal that comes from now on starts none.
  static void obeyed() noexcept;
  // For the timer's line: a step has begun its backward, or ended; `done`: the steps that are done then.
  static void step_begun(std::int64_t done) noexcept;
  static void step_ended(std::int64_t done) noexcept;
};

}  // namespace lockstep
