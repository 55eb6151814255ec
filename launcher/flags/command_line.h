// SPDX-License-Identifier: Apache-2.0
// The options of each lockstep command, as values, and the parser of the command line. Pure: nothing here examines the
// machine.
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
  store::TcpStoreServerOptions server;  // address and limits; secret and run id are unset
  // --max-clients was given; else the default is limited to the clients that have room
  bool max_clients_given = false;
  bool authenticate = true;
  std::string secret_file;  // path; empty: the secret is the environment's, else a new one
};

// `lockstep doctor`.
struct DoctorOptions {
  bool json = false;
  std::chrono::milliseconds probe_timeout{60000};  // a driver that initialises eight GPUs may take half a minute
  // -H or --hostfile, --rsh, -x and --rdzv-endpoint, with the meaning of `lockstep run`: the hosts to examine in place
  // of this one.
  RunOptions run;
  std::vector<std::string> host_flags;  // the flags that `run` was read from, for a `lockstep run` on the same hosts
  bool gpus = false;                    // tries GPUs together in place of the rest, on several hosts beside it
};

// `lockstep snapshots`.
struct SnapshotsOptions {
  std::string folder;  // a job's folder of snapshots, or one snapshot
  std::string other;   // diff: the second snapshot
  std::string output;  // export: the folder to write to; without it and `other`, `folder` is listed
  bool verify = false;
  bool json = false;
};

// `lockstep report`.
struct ReportOptions {
  std::vector<std::string> folders;  // folders with the traces of runs; several are compared
  std::string file;                  // the page; empty: report.html in the folder, for several compare.html
};

// `lockstep bisect-step`.
struct BisectStepOptions {
  std::vector<std::string> folders;  // folders that LOCKSTEP_STEP_DIGESTS named
};

// `lockstep replay`.
struct ReplayOptions {
  std::string from, to;              // the folders of two snapshots
  std::vector<std::string> digests;  // folders that LOCKSTEP_STEP_DIGESTS named in the run that saved the snapshots
  RunOptions run;                    // of the replay
};

// `lockstep ps`, `top`, `inspect`, `trace`, `logs` and `stop`.
struct RunsOptions {
  enum class What { ps, top, inspect, trace, logs, stop };
  What what = What::ps;
  std::string run;                           // all but ps: a run id or a prefix of one; empty: the only run
  bool json = false;                         // ps, top
  bool once = false;                         // top: prints the screen once
  std::chrono::milliseconds interval{1000};  // top: between two reports
  std::size_t steps = 0;                     // trace: number of last steps; 0: all steps of the trace
  std::string file;                          // trace: the output file; empty: RUN.trace.json
  bool follow = false;                       // logs
  std::size_t lines = 50;                    // logs: number of last lines
};

// The options of `lockstep agent`, which `lockstep run -H` starts on each host; the agent reads its task from standard
// input.
struct AgentOptions {};

// A command line that is answered at once: print `out` on stdout, `err` on stderr, and exit with `exit_code`.
struct Answer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

using Command = std::variant<RunOptions, ServeOptions, DoctorOptions, SnapshotsOptions, ReportOptions,
                             BisectStepOptions, ReplayOptions, RunsOptions, AgentOptions, Answer>;

// Parses `arguments`, which lack the program's own name. Torchrun's variables PET_* in `environment` supply flags of
// `lockstep run` that are not given.
Command parse_command_line(const std::vector<std::string>& arguments, const Environment& environment = {});

}  // namespace lockstep::launcher
