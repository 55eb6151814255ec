// SPDX-License-Identifier: Apache-2.0
// A thread of the library's own, which the program's signals don't reach.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include <pthread.h>
#include <signal.h>

#include "runtime/base/internal_api.h"

namespace lockstep {

// Blocks every signal for the calling thread, and puts its mask back at the end of the scope.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Throws SystemError: the limits on threads, and the errno value.
[[noreturn]] LOCKSTEP_INTERNAL_API void throw_no_thread(int error_number);

// The name of a thread that runs lockstep's code alone: while it sleeps, it waits for work. `lockstep inspect` counts
// on that. Threads in which a program's or a driver's code runs have names of their own.
inline constexpr const char* kQuietThread = "lockstep";

// Starts `body` on a thread that has all signals blocked from its first instruction on: a handler or a sigwait of the
// program runs on a thread of the program, and interrupts no call of lockstep's. A fault of the thread's own (SIGSEGV,
// SIGFPE) still ends the process. Throws SystemError, with the limits that may be reached, if no thread can be made.
// `name`: at most 15 characters, as the kernel keeps it.
template <typename Body>
std::thread start_quiet_thread(Body&& body, const char* name = kQuietThread) {
  const SignalsBlocked blocked;
  try {
    return std::thread([name, body = std::forward<Body>(body)]() mutable {
      pthread_setname_np(pthread_self(), name);
      body();
    });
  } catch (const std::system_error& error) {
    throw_no_thread(error.code().value());
  }
}

}  // namespace lockstep
