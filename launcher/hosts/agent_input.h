// SPDX-License-Identifier: Apache-2.0
// The standard input of `lockstep agent`: the start message, then lines from the `lockstep run -H` that started the
// agent.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "launcher/flags/command_line.h"
#include "launcher/hosts/agent_start.h"
#include "runtime/base/event_fd.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

class AgentInput {
 public:
  // Reads the start message. Throws InvalidArgument for another text, or if it ends too early.
  AgentInput();
  // Ends the thread that watch() started.
  ~AgentInput();
  AgentInput(const AgentInput&) = delete;
  AgentInput& operator=(const AgentInput&) = delete;

  const AgentStart& start() const { return start_; }
  const store::Secret& secret() const { return *secret_; }
  // Waits for the next line and returns it; empty at the input's end. Not while watch() has the input.
  std::string read_line();
  // Waits for the line "endpoint HOST:PORT". Throws StoreError if the input ends without it.
  std::string await_endpoint();
  // Starts a thread that turns each line "signal N" into that signal of this process, and the input's end into SIGTERM,
  // followed after `stop_timeout`, in which the ranks may save, by another SIGTERM.
  void watch(std::chrono::nanoseconds stop_timeout);

  // Reason why ranks can't start in AgentStart::folder; empty: they can.
  std::string problem;

 private:
  void follow(std::chrono::nanoseconds stop_timeout);

  AgentStart start_;
  std::optional<store::Secret> secret_;
  EventFd leaving_;
  std::thread thread_;
};

// The tasks of an agent; each returns the exit code.
struct AgentTasks {
  std::function<int(AgentInput& input, const RunOptions& options)> run;
  std::function<int(AgentInput& input)> examine;
};
// Runs `lockstep agent`.
int agent_command(const AgentTasks& tasks);

}  // namespace lockstep::launcher
