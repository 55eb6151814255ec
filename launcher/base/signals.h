// SPDX-License-Identifier: Apache-2.0
// The signals that the launcher takes by descriptor instead of by handler.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

// Returns true for the signals with which a user or a scheduler ends a job.
bool asks_to_end(int signal);

// The message of a launcher that `signal` ends between two starts of the ranks. `where`: follows "starts".
std::string stopped_between_starts(int signal, int exit_code, std::string_view where = {});

// Blocks the launcher's signals for the calling thread and the threads that it starts, so that they arrive through fd()
// only. A signal that was ignored when the process started (nohup, a background job of a script) stays ignored.
// Construct it before the process has a second thread.
class Signals {
 public:
  // Throws SystemError.
  Signals();

  int fd() const { return fd_.get(); }
  // Returns the signals that arrived since the last call, SIGCHLD among them.
  std::vector<int> take();
  // Takes the signals that arrived since the last call, and returns the first of them that asks to end, if there is
  // one.
  std::optional<int> take_end();
  // Waits for `time`, or until a signal asks to end, and returns that signal if one came.
  std::optional<int> pause(std::chrono::milliseconds time);
  // Signals that were blocked before, without those of fd(): the mask with which a started program should begin.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  UniqueFd fd_;
  sigset_t original_mask_{};
};

// Lets signals reach the calling thread, which is the main one, as before `signals` was made, for the lifetime of this
// object.
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
