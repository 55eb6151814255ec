// SPDX-License-Identifier: Apache-2.0
// Requests of `lockstep ps`, `top`, `inspect`, `trace`, `logs` and `stop` to the launchers of this host, and the
// answers. Pure.
//
// Each launcher listens on an abstract Unix socket, whose name is found in /proc/net/unix, so it leaves no files, and
// the name disappears with it. The name proves nothing: both sides ask the kernel who is at the other end
// (SO_PEERCRED), and reject other users. An abstract name belongs to a network namespace: a process in another one, a
// container for example, does not see the run.
//
// A client writes a RunRequest, an escaped record on one line, and reads to the end:
//
//   ps      a record of the run
//   top     JSON: the run, and the state of each rank (live/live_report.h)
//   stop    as ps, after SIGTERM has been sent to the launcher
//   stacks  "lockstep stacks 1", then the stacks of the process, once the launcher of the rank's host has sent them
//   logs    "lockstep logs 1", then the last lines of the log, and the later ones until the run ends if it follows
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

// A run as its launcher on this host describes it.
struct RunFacts {
  std::string run_id = {};
  int pid = 0;  // pid of the launcher, in its own pid namespace
  std::string host = {};
  int first_rank = 0;  // the first rank on this host
  int ranks = 1;       // on this host
  int world_size = 1;
  int hosts = 1;
  int node_rank = 0;
  int start = 1;  // number of this start of the ranks, from 1
  std::int64_t age_ms = 0;
  std::int64_t step = -1;    // the furthest step of any rank; -1: not known
  int stops = 0;             // number of requests to stop through the socket
  std::string log_dir = {};  // absolute path; empty: none
  std::string command = {};  // the command line, for people
  bool is_crowded = false;   // its threads outnumber the cores; only the launcher knows, and no record has it
};

// Lists the facts that a record (base/record.h) and JSON have in common, each with its least value, which JSON ignores.
template <typename Facts, typename Fields>
void for_each_fact(Facts& facts, Fields&& fields) {
  fields("run_id", facts.run_id);
  fields("pid", facts.pid, 0);
  fields("host", facts.host);
  fields("node_rank", facts.node_rank, 0);
  fields("hosts", facts.hosts, 1);
  fields("first_rank", facts.first_rank, 0);
  fields("ranks_here", facts.ranks, 0);
  fields("world_size", facts.world_size, 0);
  fields("start", facts.start, 1);
  fields("age_ms", facts.age_ms, std::int64_t{0});
  fields("step", facts.step, std::int64_t{-1});
  fields("log_dir", facts.log_dir);
  fields("command", facts.command);
}

std::string encode(const RunFacts& facts);
// Returns nullopt if the text was not made by encode(). The texts of the result are printable.
std::optional<RunFacts> decode_run_facts(std::string_view text);

inline constexpr std::string_view kLogsHeader = "lockstep logs 1\n";
inline constexpr std::string_view kStacksHeader = "lockstep stacks 1\n";

inline constexpr std::size_t kMostLines = 1'000'000;

struct RunRequest {
  enum class What { ps, top, stop, stacks, logs };
  What what = What::ps;
  std::size_t lines = 50;  // for logs: number of last lines, at most kMostLines
  bool follow = false;     // for logs
  int rank = 0;            // for stacks
  int pid = 0;             // for stacks: the rank's process
};
// Returns a line, with its newline.
std::string encode(const RunRequest& request);
// Reads a line without its newline; nullopt if the line is not a request.
std::optional<RunRequest> decode_run_request(std::string_view line);

// Returns "lockstep-run/1000/0123456789abcdef/run-4711": user, token, and as much of the run id as there is room for.
std::string run_socket_name(uid_t user, std::string_view token, std::string_view run_id);
// Returns the names of listening sockets of `user`'s runs in a text of /proc/net/unix, each once.
std::vector<std::string> run_sockets(std::string_view proc_net_unix, uid_t user);
// Returns the run id in a name, as far as the name has it, with only letters, digits, '-', '_' and '.'.
std::string run_id_of(std::string_view socket_name);

}  // namespace lockstep::launcher
