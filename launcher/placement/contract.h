// SPDX-License-Identifier: Apache-2.0
// The environment contract: which variables tell a rank who it is. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/placement/binding.h"
#include "launcher/placement/rank_map.h"
#include "lockstep/base/environment.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

// Settings that all ranks of one launcher have in common.
struct Contract {
  RankMap hosts = {HostSlots{}};  // of the job
  int node_rank = 0;              // of this one among them
  int restarts = 0;               // starts of the job's ranks before this one
  std::string master_addr;
  int master_port = 0;                        // free, unless torch_store: the launcher does not listen there
  bool torch_store = false;                   // the launcher serves torch's protocol there
  std::string store_address;                  // host:port, hosted by the launcher
  std::string relay_address;                  // for LOCKSTEP_MEMBERSHIP: host:port, of this launcher; empty: none
  std::optional<store::Secret> store_secret;  // what its clients must know
  std::string run_id;                         // unlike any other job's, on any host
  std::string timeout;                        // for LOCKSTEP_TIMEOUT; empty: leave it alone
  std::string backend;                        // for LOCKSTEP_BACKEND; empty: leave it alone
  std::string hang_timeout;                   // for LOCKSTEP_HANG_TIMEOUT; empty: leave it alone
  std::string stop_timeout;                   // for LOCKSTEP_STOP_TIMEOUT; empty: leave it alone
  std::string trace_dir;                      // for LOCKSTEP_TRACE_DIR; empty: leave it alone
  std::string requeue_exit_code;              // for LOCKSTEP_REQUEUE_EXIT_CODE; empty: leave it alone
  // For LOCKSTEP_LIVENESS; empty: leave it alone.
  std::string liveness;
  std::optional<std::string> visible_devices;  // for CUDA_VISIBLE_DEVICES; nothing: leave it alone
  std::vector<RankBinding> bindings;           // to processors, by local rank; empty: they run on all
  bool share_gpus = false;                     // ranks may be on one GPU: shared_gpu.h
  int launcher_pid = 0;
  // "FD:INODE": read end of a pipe that ends when the launcher does. The inode tells it from what else may get that
  // number once a wrapper has closed it.
  std::string launcher_fd;

  const HostSlots& own() const { return hosts[static_cast<std::size_t>(node_rank)]; }
};

// "NAME=value" for execve, the one place that the secret goes to: `inherited`, less what an outer launcher said about
// its own job, plus the contract. OMP_NUM_THREADS is left alone, since the library divides the cores itself; but a rank
// that is bound gets its number of cores there, if the user has set none: the library would divide them once more.
std::vector<std::string> rank_environment(const Environment& inherited, const Contract& contract, int local_rank);

}  // namespace lockstep::launcher
