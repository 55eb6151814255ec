// SPDX-License-Identifier: Apache-2.0
// init_process_group() makes the process that was started a rank of a group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// InitOptions are the settings of init_process_group, all optional. A given value wins over the environment.
struct InitOptions {
  // The name of the backend; "gloo", PyTorch's name, means tcp. "auto" means the value of LOCKSTEP_BACKEND, or else
  //
  // - nccl on a GPU;
  // - single with a single rank;
  // - shm on one host;
  // - between hosts mpi under mpirun, otherwise tcp.
  std::string backend = "auto";
  // The meeting place: "env://", "tcp://host:port?rank=&world_size=", "file:///path?rank=&world_size="; if empty, the
  // launcher's meeting place.
  std::string init_method = {};
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // The time limit of start-up, and of each collective whose wait has no deadline. LOCKSTEP_TIMEOUT (seconds) replaces
  // the default.
  std::optional<std::chrono::nanoseconds> timeout = {};  // the default is 5 minutes
  // The device: "cpu", "cuda:1", or "cuda", the GPU with the number of the local rank among the GPUs that the process
  // sees. "auto" means "cuda" if every rank has a GPU that NCCL supports, and "cpu" otherwise, alike on all ranks; rank
  // 0 logs the reason. Empty means LOCKSTEP_DEVICE, or else "cuda" for backend nccl, and "cpu" for another backend.
  std::string device = {};
};

// Finds the rank of this process, meets the other ranks and joins the group. Blocks until every rank has joined.
//
// The call logs one line: "rank 2/4 (local 2/4) from Open MPI, store ..., backend shm, 1 thread". The call also sets
// the library's intra-op threads to the number of allowed cores over the ranks that share them, unless OMP_NUM_THREADS
// is set.
//
// The rank comes from the arguments, then the URL's parameters, then the launcher: `lockstep run`, torchrun, RANK and
// WORLD_SIZE by hand, mpirun of Open MPI, MVAPICH2 or Hydra (MPICH, Intel MPI), PALS, PMIx, jsrun, Flux, srun, PMI,
// horovodrun, mlx.launch, Kubeflow. If no source gives a rank, the process is the only rank, and opens no socket.
// rendezvous/meeting/meet.h describes the meeting place. LOCKSTEP_BOOTSTRAP=socket, pmix or address chooses among the
// meeting places that the launcher offers.
//
// The call changes the process in three ways: an uncaught lockstep::Error becomes one line on stderr
// (uncaught.h), log lines begin with the rank, and a process that `lockstep run` or mpirun started ends when its
// launcher ends (job/launcher_guard.h).
//
// Threads: any thread may call init_process_group(); calls in N threads of a process make N ranks. A program may make
// one group after another, if each rank destroys its group before it asks for the next group; a faster rank waits until
// rank 0 has destroyed its own group.
//
// Throws InvalidArgument (bad values), Mismatch (launchers or ranks disagree, or a rank comes twice), Timeout (names
// the ranks that did not arrive), BackendUnavailable, StoreError, PeerLost (a rank died during the call), CorruptData
// (ranks of another build).
LOCKSTEP_API std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep
