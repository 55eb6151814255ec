// SPDX-License-Identifier: Apache-2.0
// What the user typed behind `lockstep run`, as values. Pure: nothing here looks at the machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/flags/host_list.h"
#include "launcher/flags/placement_flags.h"
#include "launcher/flags/rank_set.h"
#include "launcher/flags/tee.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {

// The most ranks one host is asked to start: a typing error must not become a fork bomb.
inline constexpr int kMaxRanks = 1024;
// The most restarts of a job.
inline constexpr int kMostRestarts = 1'000'000;
// The most hosts of a job.
inline constexpr int kMaxNodes = 4096;
// Where --rdzv-endpoint names no port, as torchrun has it.
inline constexpr std::uint16_t kRendezvousPort = 29400;

// `lockstep run`.
struct RunOptions {
  std::string nproc_per_node = "auto";   // a number, auto, cpu or gpu
  std::optional<int> ranks;              // -n: all ranks of the job
  std::string log_dir;                   // empty: output comes here, with a prefix
  Tee tee = {};                          // with log_dir: what comes here too
  Binding binding = Binding::none;       // of the ranks to cores
  RankSet shown_ranks = {};              // whose output comes here
  std::string trace;                     // a file for the ranks' timeline; empty: none
  std::optional<net::HostPort> metrics;  // where to answer Prometheus; unset: nowhere
  std::chrono::milliseconds grace{700};  // between SIGTERM and SIGKILL
  std::optional<int> timeout;            // seconds, for LOCKSTEP_TIMEOUT; unset: what the environment says
  std::string master_addr = "127.0.0.1";
  int master_port = 0;       // 0: a free one
  int nodes = 1;             // hosts of the job, at most
  int least_nodes = 1;       // and at least
  int max_restarts = 0;      // after failures
  std::string health_check;  // a shell command that says whether ranks may start on this host; empty: none
  // Of several hosts.
  std::optional<int> node_rank;                     // of this host; unset: the job's store gives one
  net::HostPort endpoint;                           // where node rank 0 serves the job's store
  std::string run_id;                               // --rdzv-id: who names another is turned away
  std::chrono::milliseconds rdzv_timeout{300'000};  // for all hosts to come
  std::chrono::milliseconds rdzv_wait{30'000};      // at the first start, for more than the least
  // From one place: hosts on which this command starts a launcher each.
  std::vector<HostEntry> hosts;
  std::string hostfile;                // path; empty: `hosts` are all
  std::string rsh;                     // the remote shell's words; empty: ssh
  std::vector<std::string> exported;   // -x: NAME or NAME=VALUE
  std::vector<std::string> arguments;  // of this command, as typed

  bool hosts_may_change() const { return least_nodes < nodes; }
  // A host that is one too many waits for the loss of another.
  bool takes_spares() const { return hosts_may_change() || max_restarts > 0; }
  bool starts_launchers() const { return !hosts.empty() || !hostfile.empty(); }
  std::vector<std::string> devices;      // --devices: GPUs of the ranks, by index or UUID; empty: all that are visible
  bool oversubscribe_gpu = false;        // several ranks on one GPU
  bool torch_store = false;              // serve torch's protocol there, without a secret
  std::string backend;                   // for LOCKSTEP_BACKEND; empty: what the environment says
  std::string hang_timeout;              // for LOCKSTEP_HANG_TIMEOUT: seconds, or off; empty: what the environment says
  std::string stop_timeout;              // for LOCKSTEP_STOP_TIMEOUT: seconds; empty: what the environment says
  std::optional<int> requeue_exit_code;  // for LOCKSTEP_REQUEUE_EXIT_CODE; unset: what the environment says
  std::string liveness;                  // for LOCKSTEP_LIVENESS: on, off or seconds; empty: what the environment says
  std::vector<std::string> command;      // PROGRAM and its arguments, never empty
};

}  // namespace lockstep::launcher
