// SPDX-License-Identifier: Apache-2.0
// The environment contract: the variables that tell a rank its identity. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/placement/binding.h"
#include "launcher/placement/rank_map.h"
#include "lockstep/base/environment.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

// Settings that all ranks of one launcher share.
struct Contract {
  RankMap hosts = {HostSlots{}};              // hosts of the job
  int node_rank = 0;                          // node rank of this host
  int restarts = 0;                           // earlier starts of the job's ranks
  int start() const { return restarts + 1; }  // number of this start, from 1
  int most_restarts = 0;                      // --max-restarts
  std::string master_addr;
  int master_port = 0;                         // a free port, unless torch_store: the launcher does not listen there
  bool torch_store = false;                    // the launcher serves torch's protocol there
  std::string store_address;                   // host:port, hosted by the launcher
  std::string relay_address;                   // for LOCKSTEP_MEMBERSHIP: host:port of this launcher; empty: none
  std::optional<store::Secret> store_secret;   // the secret that clients of the store need
  std::string run_id;                          // unlike any other job's, on any host
  std::string trace_dir;                       // for LOCKSTEP_TRACE_DIR; empty: leave the variable unchanged
  std::optional<std::string> visible_devices;  // for CUDA_VISIBLE_DEVICES; nullopt: leave the variable unchanged
  std::vector<RankBinding> bindings;           // processors by local rank; empty: ranks run on all processors
  bool share_gpus = false;                     // ranks may be on one GPU: shared_gpu.h
  int launcher_pid = 0;
  // "FD:INODE" of the read end of a pipe that ends when the launcher does. The inode distinguishes it from another file
  // that gets the number after a wrapper has closed the pipe.
  std::string launcher_fd;

  const HostSlots& own() const { return hosts[static_cast<std::size_t>(node_rank)]; }
};

// Returns "NAME=value" for execve, the only place where the secret is written: `inherited`, without an outer launcher's
// variables about its own job, plus the contract. OMP_NUM_THREADS is unchanged, since the library divides the cores
// itself. The exception is a bound rank, whose OMP_NUM_THREADS is its number of cores, unless the user has set the
// variable: the library would divide the cores once more.
std::vector<std::string> rank_environment(const Environment& inherited, const Contract& contract, int local_rank);

}  // namespace lockstep::launcher
