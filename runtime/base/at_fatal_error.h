// SPDX-License-Identifier: Apache-2.0
// Actions for an exception that nobody catches and that ends the process: no destructor runs then.
#pragma once

#include <functional>
#include <list>
#include <thread>

namespace lockstep {

// While it lives, `action` runs once if an exception that nobody catches ends this thread, and with it the process.
class AtFatalError {
 public:
  // `action` throws nothing.
  explicit AtFatalError(std::function<void()> action);
  ~AtFatalError();
  AtFatalError(const AtFatalError&) = delete;
  AtFatalError& operator=(const AtFatalError&) = delete;

 private:
  struct Entry {
    std::thread::id thread;
    std::function<void()> action;
  };
  static std::list<Entry>& entries();
  friend void run_at_fatal_error();

  std::list<Entry>::iterator entry_;
};

// Runs this thread's actions, the latest first; each is taken off the list before it runs. For the terminate handler.
void run_at_fatal_error();

}  // namespace lockstep
