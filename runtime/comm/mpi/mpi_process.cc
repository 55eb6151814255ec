// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/mpi/mpi_process.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::mpi_backend {
namespace {

// How long the exit of the process waits for MPI_Finalize, which waits for the other ranks to come to theirs.
constexpr std::chrono::seconds kFinalizePatience{10};

// The thread, and what it has to do. Never destroyed: the thread may outlive every static object.
struct MpiThread {
  Mutex mutex;
  Condition changed;
  bool running GUARDED_BY(mutex) = false;  // the thread is there
  bool busy GUARDED_BY(mutex) = false;     // with a group
  bool ending GUARDED_BY(mutex) = false;
  bool ended GUARDED_BY(mutex) = false;
  std::uint64_t finished GUARDED_BY(mutex) = 0;
  std::function<void()> body GUARDED_BY(mutex);
};

MpiThread& mpi_thread() {
  static MpiThread* const thread = new MpiThread;
  return *thread;
}

std::atomic<bool> group_failed{false};

void finalize() {
  if (group_failed.load()) return;
  int started = 0;
  int over = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&over);
  if (started == 0 || over != 0) return;
  const std::string problem = mpi_error(MPI_Finalize(), "MPI_Finalize");
  if (!problem.empty()) log_warn("{}", problem);
}

void serve() {
  MpiThread& self = mpi_thread();
  for (;;) {
    std::function<void()> body;
    {
      MutexLock lock(self.mutex);
      while (!self.body && !self.ending) self.changed.wait(self.mutex);
      if (!self.body) break;
      body = std::exchange(self.body, nullptr);
    }
    body();
    // The body goes before it counts as finished: whoever waits for that may destroy what the body refers to.
    body = nullptr;
    MutexLock lock(self.mutex);
    self.busy = false;
    ++self.finished;
    self.changed.notify_all();
  }
  finalize();
  MutexLock lock(self.mutex);
  self.ended = true;
  self.changed.notify_all();
}

// Called by the thread that is ending: returns once MPI_Finalize has returned.
void wait_for_end(MpiThread& self) REQUIRES(self.mutex) {
  const Deadline patience = Deadline::after(kFinalizePatience);
  while (!self.ended) {
    if (self.changed.wait_until(self.mutex, patience)) continue;
    log_warn(
        "backend 'mpi': MPI_Finalize has not returned, {}; this process ends without waiting for MPI_Finalize any "
        "longer: see whether another rank still runs",
        patience.progress());
    return;
  }
}

void end_at_exit() {
  MpiThread& self = mpi_thread();
  MutexLock lock(self.mutex);
  self.ending = true;
  self.changed.notify_all();
  // With a group alive the process is not waited for: exit() was called in the midst of training, and the others hear
  // of it when the process has ended. Or a static of the program holds the group: whoever destroys it then waits for
  // MPI.
  if (!self.busy) wait_for_end(self);
}

}  // namespace

std::function<void()> run_on_mpi_thread(std::function<void()> body) {
  MpiThread& self = mpi_thread();
  std::uint64_t number = 0;
  {
    MutexLock lock(self.mutex);
    if (self.busy) {
      throw BackendUnavailable(
          "backend 'mpi': this process already has a group of this backend, and MPI serves one group at a time; "
          "destroy that group first, or use backend 'tcp'");
    }
    if (!self.running) {
      start_quiet_thread(&serve, "lockstep-mpi").detach();
      self.running = true;
      static_cast<void>(std::atexit(&end_at_exit));
    }
    self.busy = true;
    self.body = std::move(body);
    number = self.finished + 1;
    self.changed.notify_all();
  }
  return [number] {
    MpiThread& thread = mpi_thread();
    MutexLock lock(thread.mutex);
    while (thread.finished < number) thread.changed.wait(thread.mutex);
    if (thread.ending) wait_for_end(thread);
  };
}

void never_finalize() { group_failed.store(true); }

std::string why_not_again() {
  if (!group_failed.load()) return {};
  return "backend 'mpi': a group of this process has failed, and MPI can't be used any more after that; restart the "
         "process, or use backend 'tcp'";
}

std::string mpi_error(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return fmt::format("{} failed: {} (code {})", call, std::string(text, static_cast<std::size_t>(length)), code);
}

void start_mpi(int rank, int world_size) {
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0) {
    // Its components look for the library's symbols among those of the whole process, and the plug-in is loaded without
    // giving them away.
    dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    int level = 0;
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    if (const auto problem = mpi_error(code, "MPI_Init_thread"); !problem.empty()) {
      throw BackendUnavailable(
          fmt::format("backend 'mpi': MPI did not start: {}; look at the output of mpirun", problem));
    }
    if (level < MPI_THREAD_SERIALIZED) {
      throw BackendUnavailable(
          fmt::format("backend 'mpi': this MPI gives thread level {}, and lockstep needs {} (MPI_THREAD_SERIALIZED); "
                      "install an MPI that is built with threads",
                      level, int{MPI_THREAD_SERIALIZED}));
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  int mpi_rank = 0;
  int mpi_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
  if (mpi_rank == rank && mpi_size == world_size) return;
  throw Mismatch(
      fmt::format("backend 'mpi': MPI says this is rank {} of {}, but the program or its environment says rank {} of "
                  "{}; start all ranks with one mpirun, and unset RANK and WORLD_SIZE",
                  mpi_rank, mpi_size, rank, world_size));
}

}  // namespace lockstep::mpi_backend
