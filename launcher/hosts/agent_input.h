// SPDX-License-Identifier: Apache-2.0
// The standard input of `lockstep agent`: how to start, and then the word of the `lockstep run -H` that started it.
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
  // Reads how to start. Throws InvalidArgument if that is not what stands there, or it ends too early.
  AgentInput();
  // Ends the thread of watch().
  ~AgentInput();
  AgentInput(const AgentInput&) = delete;
  AgentInput& operator=(const AgentInput&) = delete;

  const AgentStart& start() const { return start_; }
  const store::Secret& secret() const { return *secret_; }
  // The next line, which is waited for; empty at the input's end. Not while watch() has the input.
  std::string read_line();
  // Waits for the line "endpoint HOST:PORT". Throws StoreError where none comes.
  std::string await_endpoint();
  // From now on a thread turns each line "signal N" into that signal of this process, and the input's end into SIGTERM,
  // and into another one after `stop_timeout`, in which the ranks may save.
  void watch(std::chrono::nanoseconds stop_timeout);

  // Why the ranks can't start in AgentStart::folder; empty: they can.
  std::string problem;

 private:
  void follow(std::chrono::nanoseconds stop_timeout);

  AgentStart start_;
  std::optional<store::Secret> secret_;
  EventFd leaving_;
  std::thread thread_;
};

// What an agent is started for; each returns the exit code.
struct AgentTasks {
  std::function<int(AgentInput& input, const RunOptions& options)> run;
  std::function<int(AgentInput& input, const DoctorOptions& options)> examine;
};
// `lockstep agent`.
int agent_command(const AgentTasks& tasks);

}  // namespace lockstep::launcher
