// SPDX-License-Identifier: Apache-2.0
// Signals that ask this process to stop in its own time, kept for who looks.
//
// The handlers do nothing but async-signal-safe calls: they note the first signal, start a kernel timer (timer_settime)
// and call the handler that was there before. The timer sends the process its own signal again; no thread waits for it.
//
// A second signal of one kind ends the process by that signal's default action, and so does the timer, after a line on
// stderr. What comes within kOneRequest of the first of its kind is the same request: timeout(1) signals its child and
// then the child's group.
//
// Threads: the constructor and destructor any, one at a time; everything else any. Fork: a child ends by the first
// signal, as without handlers. They run on a stack of their own in the thread that called the constructor, which is to
// be the main one (signal_stack.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// SIGTERM, SIGINT, SIGUSR1: of Slurm and Kubernetes, of a terminal, and what schedulers can be told to send ahead.
std::vector<int> default_stop_signals();

// While one lives the handlers are installed; after the last one those from before are there again. A signal that is
// ignored, as SIGINT in a script's background job, stays ignored.
class StopSignals {
 public:
  static constexpr std::chrono::milliseconds kOneRequest{200};

  struct Options {
    std::vector<int> signals = default_stop_signals();
    std::chrono::nanoseconds timeout = std::chrono::seconds(25);  // above 0
    std::string who = {};                                         // for the timer's line: "rank 2"
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
  // For the timer's line: step `step` has begun its backward, or has ended.
  static void step_begun(std::int64_t step) noexcept;
  static void step_ended(std::int64_t step) noexcept;
};

}  // namespace lockstep
