// SPDX-License-Identifier: Apache-2.0
// The standard input of `lockstep agent`: the start message, then lines from the `lockstep run -H` that started the
// agent.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launcher/flags/command_line.h"
#include "runtime/base/event_fd.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

// The start message that `lockstep run -H` writes to the standard input of the `lockstep agent` that it has started on
// a host, and the lines that follow. None of it appears on a command line or in an environment on that host, except for
// the job's own variables.
struct AgentStart {
  std::string secret = {};                  // 64 hex digits
  std::string folder = {};                  // the folder in which the ranks start
  std::vector<std::string> arguments = {};  // the user's command line, without `lockstep`
  std::vector<std::string> variables = {};  // "NAME=value", for this host's launcher and ranks
  int nodes = 2;
  int node_rank = 0;
  std::string nproc_per_node = {};
  std::string endpoint = {};  // host:port; port 0: node rank 0 takes a free one, and the others are told
};

// Returns the line "lockstep-agent 1 BYTES" and as many bytes.
std::string encode(const AgentStart& start);
// Returns the number of bytes that follow; nullopt for another line.
std::optional<std::size_t> bytes_of_start(std::string_view first_line);
// Returns nullopt if the bytes were not made by encode().
std::optional<AgentStart> decode_agent_start(std::string_view bytes);

// Prefixes of the lines that follow: "endpoint HOST:PORT", "signal NUMBER".
inline constexpr std::string_view kEndpointLine = "endpoint ";
inline constexpr std::string_view kSignalLine = "signal ";
// Lines of agents on stderr: every agent writes kHereLine when it has read the start message; node rank 0's writes
// "lockstep-agent serves PORT" when it serves the store.
inline constexpr std::string_view kHereLine = "lockstep-agent is here";
inline constexpr std::string_view kServesLine = "lockstep-agent serves ";

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
  // Waits for the next line and returns it, cut after `most_bytes`; empty at the input's end. Not while watch() has the
  // input.
  std::string read_line(std::size_t most_bytes = 4096);
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
