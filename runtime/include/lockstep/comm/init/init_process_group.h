// SPDX-License-Identifier: Apache-2.0
// init_process_group: from a started process to a member of a group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// Every field may be left out; a given value wins over the environment.
struct InitOptions {
  // "auto": the value of LOCKSTEP_BACKEND; else on a GPU nccl; else single for a world of one, shm on one host, across
  // hosts mpi under mpirun, else tcp. Or a backend's name; "gloo", as PyTorch has it, is tcp.
  std::string backend = "auto";
  // "env://", "tcp://host:port?rank=&world_size=", "file:///path?rank=&world_size="; empty: the launcher's.
  std::string init_method = {};
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // The job's timeout: of start-up, and of each collective that is waited for without a deadline of its own.
  // LOCKSTEP_TIMEOUT (seconds) sets another default.
  std::optional<std::chrono::nanoseconds> timeout = {};  // default 5 minutes
  // "cpu", "cuda:1", or "cuda": of the GPUs that the process sees the one with the number of its local rank. "auto", of
  // all ranks alike: "cuda" where every rank has a GPU that NCCL serves, else "cpu"; rank 0 says why. Empty:
  // LOCKSTEP_DEVICE; without it "cuda" for backend nccl, else "cpu".
  std::string device = {};
};

// Finds out the rank of this process, meets the other ranks and joins the group. Blocks until every rank has joined.
//
// Logs one line: "rank 2/4 (local 2/4) from Open MPI, store ..., backend shm, 1 thread". Sets the library's intra-op
// threads to the allowed cores over the ranks that share them, unless OMP_NUM_THREADS says.
//
// The rank comes from the arguments, then the URL's parameters, then the launcher: `lockstep run`, torchrun, RANK and
// WORLD_SIZE by hand, mpirun of Open MPI, MVAPICH2 or Hydra (MPICH, Intel MPI), PALS, PMIx, jsrun, Flux, srun, PMI,
// horovodrun, mlx.launch, Kubeflow; with none of them it is alone, and no socket is opened. rendezvous/meeting/meet.h
// describes the meeting place. LOCKSTEP_BOOTSTRAP=socket, pmix or address chooses among the meeting places that the
// launcher offers.
//
// It changes the process in three ways: an uncaught lockstep::Error becomes one line on stderr (uncaught.h), lines of
// the log get the rank before them, and a process that `lockstep run` or mpirun started ends when its launcher does
// (job/launcher_guard.h).
//
// Threads: any; a call in each of several threads makes as many ranks. The groups of a program may follow each other,
// if each rank destroys its group before it asks for the next; a faster rank waits until rank 0 has destroyed its own.
// Throws InvalidArgument (bad values), Mismatch (launchers or ranks disagree, the same rank twice), Timeout (names the
// ranks that did not come), BackendUnavailable, StoreError, PeerLost (a rank died on the way), CorruptData (ranks of
// another build).
LOCKSTEP_API std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep
