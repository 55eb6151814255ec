// SPDX-License-Identifier: Apache-2.0
// MPI in this process: started once, called from one thread alone, and ended with the process.
//
// MPI can be started only once, so what a group leaves is kept for the next one. All calls are made on one thread,
// which lives until the process exits; it ends MPI then, since mpirun takes a rank that goes without for a failed one.
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace lockstep::mpi_backend {

// Runs `body` on MPI's thread and returns what waits for its end. For wire::ThreadMaker. Throws BackendUnavailable if
// another group of this process is using it.
std::function<void()> run_on_mpi_thread(std::function<void()> body);

// On MPI's thread: starts MPI if this is the first time, and checks that its world is ours. Throws Mismatch or
// BackendUnavailable.
void start_mpi(int rank, int world_size);

// A group has failed: the process is to end without MPI_Finalize, which would wait for ranks that do not come. mpirun
// then counts this rank as failed, which it has. Any thread.
void never_finalize();

// Why there can be no further group: MPI may still know memory of one that failed, and continue its transfers. Empty if
// none has.
std::string why_not_again();

// Why `call` failed, as a sentence; empty if it did not.
std::string mpi_error(int code, const char* call);

}  // namespace lockstep::mpi_backend
