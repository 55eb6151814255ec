// SPDX-License-Identifier: Apache-2.0
// The signals that the launcher takes by descriptor instead of by handler.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

// True of those that a user or a scheduler ends a job with.
bool asks_to_end(int signal);

// Blocks them for this thread and those it starts, so that they come through fd() only. One that was ignored when the
// process started (nohup, a background job of a script) stays ignored. Make it before there is a second thread.
class Signals {
 public:
  // Throws SystemError.
  Signals();

  int fd() const { return fd_.get(); }
  // The signals that came since the last call, SIGCHLD among them.
  std::vector<int> take();
  // The first of those that came since which asks to end, if one did.
  std::optional<int> take_end();
  // Waits so long, unless a signal comes that asks to end: then that one.
  std::optional<int> pause(std::chrono::milliseconds time);
  // What was blocked before, without those of fd(): what a program that is started should start with.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  UniqueFd fd_;
  sigset_t original_mask_{};
};

// While it lives, signals reach the calling thread, the main one, as they did before `signals` was made.
class SignalsLetThrough {
 public:
  explicit SignalsLetThrough(const Signals& signals);
  ~SignalsLetThrough();
  SignalsLetThrough(const SignalsLetThrough&) = delete;
  SignalsLetThrough& operator=(const SignalsLetThrough&) = delete;

 private:
  sigset_t blocked_{};
};

}  // namespace lockstep::launcher
