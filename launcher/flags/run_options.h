// SPDX-License-Identifier: Apache-2.0
// The options of `lockstep run`, as values. Pure: nothing here examines the machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/flags/flag_values.h"
#include "launcher/flags/host_list.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {

// The most restarts of a job.
inline constexpr int kMostRestarts = 1'000'000;
// The most hosts of a job.
inline constexpr int kMaxNodes = 4096;
// The port of an --rdzv-endpoint without one, the same as torchrun's.
inline constexpr std::uint16_t kRendezvousPort = 29400;

// The options of `lockstep run`.
struct RunOptions {
  std::string nproc_per_node = "auto";   // a number, auto, cpu or gpu
  std::optional<int> ranks;              // -n: all ranks of the job
  std::string log_dir;                   // empty: output goes to this terminal, with a prefix
  Tee tee = {};                          // with log_dir: streams that are also shown here
  Binding binding = Binding::none;       // binding of the ranks to cores
  RankSet shown_ranks = {};              // ranks whose output is shown here
  std::string trace;                     // a file for the ranks' timeline; empty: no timeline
  std::optional<net::HostPort> metrics;  // address that answers Prometheus; unset: none
  std::chrono::milliseconds grace{700};  // between SIGTERM and SIGKILL
  std::string master_addr = "127.0.0.1";
  int master_port = 0;       // 0: a free one
  int nodes = 1;             // the most hosts of the job
  int least_nodes = 1;       // the fewest hosts of the job
  int max_restarts = 0;      // after failures
  std::string health_check;  // a shell command that decides whether ranks may start on this host; empty: none
  // For jobs on several hosts.
  std::optional<int> node_rank;                     // node rank of this host; unset: the job's store assigns one
  net::HostPort endpoint;                           // address at which node rank 0 serves the job's store
  std::string run_id;                               // --rdzv-id: a host that names another is rejected
  std::chrono::milliseconds rdzv_timeout{300'000};  // for all hosts to join
  std::chrono::milliseconds rdzv_wait{30'000};      // at the first start, for more than the fewest hosts
  // Multi-host jobs from one command: hosts on which it starts one launcher each.
  std::vector<HostEntry> hosts;
  std::string hostfile;                // path; empty: `hosts` is complete
  std::string rsh;                     // the remote shell and its arguments; empty: ssh
  std::vector<std::string> exported;   // -x: NAME or NAME=VALUE
  std::vector<std::string> arguments;  // arguments of this command, as typed

  bool hosts_may_change() const { return least_nodes < nodes; }
  // Returns true if a surplus host waits until another one is lost.
  bool takes_spares() const { return hosts_may_change() || max_restarts > 0; }
  bool starts_launchers() const { return !hosts.empty() || !hostfile.empty(); }
  std::vector<std::string> devices;  // --devices: GPUs of the ranks, by index or UUID; empty: all visible ones
  bool oversubscribe_gpu = false;    // allows several ranks on one GPU
  bool standalone = false;           // torchrun's, without effect
  bool torch_store = false;          // serves torch's protocol at MASTER_PORT, without a secret
  // Variables of the ranks that flags set, such as LOCKSTEP_TIMEOUT; others keep the environment's value.
  std::map<std::string, std::string> rank_variables;
  std::vector<std::string> command;  // PROGRAM and its arguments, never empty
};

}  // namespace lockstep::launcher
