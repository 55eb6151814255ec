// SPDX-License-Identifier: Apache-2.0
// What the user typed, as values. Pure: nothing here looks at the machine.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::launcher {

// `lockstep store serve`.
struct ServeOptions {
  store::TcpStoreServerOptions server;  // address and limits; without secret and run id
  bool max_clients_given = false;       // else as many of the default as there is room for
  bool authenticate = true;
  std::string secret_file;  // empty: what the environment says, else a secret of its own
};

// `lockstep doctor`.
struct DoctorOptions {
  bool json = false;
  std::chrono::milliseconds probe_timeout{60000};  // a driver that wakes up eight GPUs may take half a minute
  // -H or --hostfile, --rsh, -x and --rdzv-endpoint, as `lockstep run` has them: these hosts, and not this one.
  RunOptions run;
  std::string program;  // that must be there; empty: none
};

// `lockstep snapshots`.
struct SnapshotsOptions {
  std::string folder;  // a job's, or a snapshot
  std::string other;   // diff: the second snapshot; empty: a listing
  bool verify = false;
  bool json = false;
};

// `lockstep report`.
struct ReportOptions {
  std::vector<std::string> folders;  // of runs' traces; several are compared
  std::string file;                  // of the page; empty: report.html in the folder, with several compare.html
};

// `lockstep bisect-step`.
struct BisectStepOptions {
  std::vector<std::string> folders;  // of LOCKSTEP_STEP_DIGESTS
};

// `lockstep ps`, `top`, `inspect`, `trace`, `logs` and `stop`.
struct RunsOptions {
  enum class What { ps, top, inspect, trace, logs, stop };
  What what = What::ps;
  std::string run;                           // all but ps: a run id, or how one begins; empty: the only one
  bool json = false;                         // ps, top
  bool once = false;                         // top: no screen that is drawn again
  std::chrono::milliseconds interval{1000};  // top: between two looks
  std::size_t steps = 0;                     // trace: so many of the last; 0: all that there are
  std::string file;                          // trace: to write; empty: RUN.trace.json
  bool follow = false;                       // logs
  std::size_t lines = 50;                    // logs: so many of the last
};

// `lockstep agent`, which `lockstep run -H` starts on each host: it reads how to start from its standard input.
struct AgentOptions {};

// Nothing to run: print `out` on stdout, `err` on stderr, and leave with `exit_code`.
struct Answer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

using Command = std::variant<RunOptions, ServeOptions, DoctorOptions, SnapshotsOptions, ReportOptions,
                             BisectStepOptions, RunsOptions, AgentOptions, Answer>;

// `arguments` without the program's own name. Of `environment` torchrun's variables PET_* count, for flags of
// `lockstep run` that are not given.
Command parse_command_line(const std::vector<std::string>& arguments, const Environment& environment = {});

}  // namespace lockstep::launcher
