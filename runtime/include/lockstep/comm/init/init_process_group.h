// SPDX-License-Identifier: Apache-2.0
// Defines init_process_group(), which makes the calling process a rank of a process group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// InitOptions holds the settings of init_process_group(), all optional. A value set in InitOptions takes precedence
// over an environment variable.
struct InitOptions {
  // The name of the backend; "gloo", PyTorch's name, means tcp. "auto" means the value of LOCKSTEP_BACKEND. If
  // LOCKSTEP_BACKEND is unset, "auto" chooses nccl on GPUs, single for a group of one rank, and shm for ranks on one
  // host. Between hosts, "auto" chooses mpi if mpirun started the ranks, and tcp otherwise.
  std::string backend = "auto";
  // The URL of the place where the ranks meet ("env://", "tcp://host:port?rank=&world_size=" or
  // "file:///path?rank=&world_size="). If `init_method` is empty, the ranks meet at the place that the launcher offers.
  std::string init_method = {};
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // The time limit of init_process_group(), and of each collective that is waited for without a deadline. The
  // environment variable LOCKSTEP_TIMEOUT, in seconds, replaces the default.
  std::optional<std::chrono::nanoseconds> timeout = {};  // the default is 5 minutes
  // The device of the group: "cpu", "cuda:1", "cuda" or "auto". "cuda" means GPU number r of the GPUs that the process
  // sees, where r is the process's local rank, from 0. "auto" means "cuda" on all ranks if every rank has a GPU that
  // NCCL supports, and "cpu" on all ranks otherwise; rank 0 logs the reason. If `device` is empty, LOCKSTEP_DEVICE
  // names the device; if LOCKSTEP_DEVICE is also unset, the device is "cuda" for backend nccl, and "cpu" for every
  // other backend.
  std::string device = {};
};

// Finds out the rank of this process, connects to the other ranks and joins the group. Blocks until every rank
// has joined.
//
// init_process_group() logs one line, such as "rank 2/4 (local 2/4) from Open MPI, store ..., backend shm, 1 thread".
// Unless OMP_NUM_THREADS is set, init_process_group() calls set_intra_op_threads() with the number of allowed cores
// divided by the number of ranks that share these cores.
//
// The rank comes from InitOptions. If InitOptions sets no rank, the rank comes from the parameters of the URL; if the
// URL gives no rank, the rank comes from the launcher. The known launchers are `lockstep run`, torchrun, RANK and
// WORLD_SIZE set by hand, mpirun of Open MPI, MVAPICH2 or Hydra (MPICH, Intel MPI), PALS, PMIx, jsrun, Flux, srun, PMI,
// horovodrun, mlx.launch and Kubeflow. If neither InitOptions, URL nor launcher gives a rank, the process is the only
// rank, and opens no socket. The header rendezvous/meeting/meet.h describes how ranks meet. The environment variable
// LOCKSTEP_BOOTSTRAP (socket, pmix or address) chooses among the meeting places that a launcher offers.
//
// init_process_group() changes the process in three ways. After init_process_group(), an uncaught lockstep::Error is
// printed as one line on stderr (uncaught.h). Log lines begin with the rank. A process that `lockstep run` or mpirun
// started ends when its launcher ends (job/launcher_guard.h).
//
// Threads: any thread may call init_process_group(); calls in N threads of a process make N ranks. A program may make
// one group after another, if each rank destroys its group before it calls init_process_group() again. A rank that
// calls init_process_group() for a second group waits until rank 0 has destroyed the first group.
//
// Throws InvalidArgument if an option or environment variable has an invalid value. Throws Mismatch if launchers or
// ranks disagree, or if two processes claim one rank. Throws Timeout, with a message that names the ranks that did not
// arrive, and PeerLost if a rank died during the call. Throws CorruptData if a rank runs another build of lockstep.
// Throws BackendUnavailable and StoreError too.
LOCKSTEP_API std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep
