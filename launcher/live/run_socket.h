// SPDX-License-Identifier: Apache-2.0
// Requests of `lockstep ps`, `top`, `inspect`, `trace`, `logs` and `stop` to the launchers of this host, and the
// answers. Pure.
//
// Each launcher listens on an abstract Unix socket, whose name is found in /proc/net/unix, so nothing is on disk and
// nothing is left when it ends. The name proves nothing: both sides ask the kernel who is at the other end
// (SO_PEERCRED), and take no other user's word. An abstract name is of a network namespace: who is in another one, a
// container for example, does not see the run.
//
// A client writes one line and reads to the end:
//
//   ps           a record of the run
//   top          JSON: the run, and what each rank does (observe/live_report.h)
//   stop         the same, once the launcher has been sent SIGTERM
//   stacks 5 71  "lockstep stacks 1", then what the launcher of rank 5's host tells of process 71 there, once it does
//   logs 50 1    "lockstep logs 1", then the last 50 lines of its log, and with 1 those that follow until it ends
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

// A run as its launcher on this host tells of it.
struct RunFacts {
  std::string run_id = {};
  int pid = 0;  // of the launcher, in its pid namespace
  std::string host = {};
  int first_rank = 0;  // of those on this host
  int ranks = 1;       // on this host
  int world_size = 1;
  int hosts = 1;
  int node_rank = 0;
  int generation = 0;  // starts of the ranks before this one
  std::int64_t age_ms = 0;
  std::int64_t step = -1;    // the furthest that a rank is in; -1: not known
  int stops = 0;             // how often it was asked to, this way
  std::string log_dir = {};  // whole path; empty: none
  std::string command = {};  // for people
  bool is_crowded = false;   // its threads outnumber the cores; the launcher's own knowledge, in no record
};

std::string encode(const RunFacts& facts);
// nullopt if the text is not one of encode(). The texts of the result may be printed.
std::optional<RunFacts> decode_run_facts(std::string_view text);

inline constexpr std::string_view kLogsHeader = "lockstep logs 1\n";
inline constexpr std::string_view kStacksHeader = "lockstep stacks 1\n";

struct RunRequest {
  enum class What { ps, top, stop, stacks, logs };
  What what = What::ps;
  std::size_t lines = 50;  // of logs: the last ones
  bool follow = false;     // of logs
  int rank = 0;            // of stacks
  int pid = 0;             // of stacks: of the rank's process
};
// With the line's end.
std::string encode(const RunRequest& request);
// Reads a line without its end; nullopt if it is not a request.
std::optional<RunRequest> decode_run_request(std::string_view line);

// "lockstep-run/1000/0123456789abcdef/run-4711": user, what makes it unlike any other, run id, as far as there is room.
std::string run_socket_name(uid_t user, std::string_view token, std::string_view run_id);
// The names of listening sockets of `user`'s runs in a text of /proc/net/unix, each once.
std::vector<std::string> run_sockets(std::string_view proc_net_unix, uid_t user);
// The run id in a name, as far as it is there: letters, digits, '-', '_' and '.', whatever the name has.
std::string run_id_of(std::string_view socket_name);

}  // namespace lockstep::launcher
