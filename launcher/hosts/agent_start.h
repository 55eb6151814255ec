// SPDX-License-Identifier: Apache-2.0
// What `lockstep run -H` writes to the standard input of the `lockstep agent` that it has started on a host: first how
// to start, then lines. Nothing of it is ever on a command line or in an environment there but the job's own variables.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct AgentStart {
  std::string secret = {};                  // 64 hex digits
  std::string folder = {};                  // where the ranks start
  std::vector<std::string> arguments = {};  // the user's command line, behind `lockstep`
  std::vector<std::string> variables = {};  // "NAME=value", for this host's launcher and ranks
  int nodes = 2;
  int node_rank = 0;
  std::string nproc_per_node = {};
  std::string endpoint = {};  // host:port; port 0: node rank 0 takes a free one, and the others are told
};

// The first line is "lockstep-agent 1 BYTES", and so many bytes follow.
std::string encode(const AgentStart& start);
// The bytes that follow; nullopt for another line.
std::optional<std::size_t> bytes_of_start(std::string_view first_line);
// nullopt if the bytes are not of encode().
std::optional<AgentStart> decode_agent_start(std::string_view bytes);

// Lines that follow: "endpoint HOST:PORT", "signal NUMBER".
inline constexpr std::string_view kEndpointLine = "endpoint ";
inline constexpr std::string_view kSignalLine = "signal ";
// What every agent writes on its stderr when it has read how to start, and node rank 0's when it serves the store:
// "lockstep-agent serves PORT".
inline constexpr std::string_view kHereLine = "lockstep-agent is here";
inline constexpr std::string_view kServesLine = "lockstep-agent serves ";

}  // namespace lockstep::launcher
