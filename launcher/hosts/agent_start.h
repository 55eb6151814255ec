// SPDX-License-Identifier: Apache-2.0
// The start message that `lockstep run -H` writes to the standard input of the `lockstep agent` that it has started on
// a host, and the lines that follow. None of it appears on a command line or in an environment on that host, except for
// the job's own variables.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

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

}  // namespace lockstep::launcher
