// SPDX-License-Identifier: Apache-2.0
// A program as a test sees it: started with a known environment, its output kept, nothing of it left behind.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/wait_until.h"

namespace lockstep::testing {

using Variables = std::map<std::string, std::string>;

struct ProcessOptions {
  std::vector<std::string> command;  // argv; a name without a slash is looked for in PATH
  // Added to the test's own environment, from which every launcher's variables (RANK, LOCKSTEP_*, OMPI_*, SLURM_* ...)
  // have been taken out. LOCKSTEP_TEST_JOB is set to job() unless it is given, and LOCKSTEP_LIVENESS to "off": who
  // tests what becomes of a silent rank says "on".
  Variables environment = {};
  std::string input = {};   // what it reads on stdin
  std::string folder = {};  // to run in; empty: the test's
  std::string name = {};    // for messages; empty: the program's
};

// How it ended. exit_code is as a shell says it: 128 + N for signal N.
struct Result {
  int exit_code = -1;
  int signal = 0;  // that killed it, or 0
  std::string out;
  std::string err;
};

// Threads: the one that made it, which must be the test's main thread: the program dies with it.
// Its output is shown when the object is destroyed, if the test has failed by then.
class Process {
 public:
  // Starts it, in a process group of its own. Throws SystemError if it can't be executed.
  explicit Process(ProcessOptions options);
  // Kills what still runs of its process group.
  ~Process();
  Process(Process&&) noexcept;
  Process& operator=(Process&&) = delete;

  pid_t pid() const;
  // Started and not ended; a zombie has ended.
  bool running() const;
  // To the process alone. Fails the test if it has been waited for already.
  void send(int signal) const;

  // What it has written so far.
  std::string out() const;
  std::string err() const;
  // Waits until it has written `text` on either stream, `count` times. False if it ended without, or the deadline
  // passed: then its output is shown.
  bool await_output(std::string_view text, int count = 1, const Deadline& deadline = Deadline::after(kPatience)) const;
  // Waits for its end and for that of its output. Throws Timeout, with all of its output, when the deadline passes.
  Result wait(const Deadline& deadline = Deadline::after(kPatience));

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Starts, waits, returns.
Result run_process(ProcessOptions options, const Deadline& deadline = Deadline::after(kPatience));
inline Result run(std::vector<std::string> command, Variables environment = {}) {
  return run_process({.command = std::move(command), .environment = std::move(environment)});
}

// The value of LOCKSTEP_TEST_JOB of all processes this test starts: one per test, unlike any other running one's.
std::string job();

// True if the program is found in PATH.
bool has_program(std::string_view name);

}  // namespace lockstep::testing
