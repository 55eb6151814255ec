// SPDX-License-Identifier: Apache-2.0
// What ncclComm_t points to. Kept for good, so that a late call is seen.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/books.h"
#include "tests/fakes/nccl/operations.h"
#include "tests/fakes/nccl/world.h"

namespace lockstep::fake_nccl {

namespace fake_cuda = lockstep::fake_cuda;

class Communicator {
 public:
  Communicator(int size, int rank, const char* id, int device);

  // Every function begins with it: that the caller may make this call, and what is to go wrong with it.
  // A violation makes it say error.
  class Call {
   public:
    Call(Communicator& of, const char* name, bool in_progress = false);
    ~Call() { of_.calls_--; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Effect effect() const { return effect_; }
    // The communicator was destroyed or aborted: nothing is done.
    bool is_late() const { return late_; }

   private:
    Communicator& of_;
    Effect effect_ = Effect::none;
    bool late_ = false;
  };

  void join(Effect effect);
  // Outside of a group: a group of its own.
  ncclResult_t launch(std::vector<Operation> operations);
  Operation counted(Operation operation, Effect effect);
  ncclResult_t state();
  void finalize(Effect effect);
  void destroy(Effect effect);
  void abort(Effect effect);
  void* add_registration(void* data);
  void remove_registration(void* handle);
  // Whether this memory is registered with it.
  bool holds(const void* data);

  std::string last_error;

 private:
  // A thread does it; until then the communicator is in progress.
  void begin(std::function<ncclResult_t()> work);
  // False if the device does not take them: it is broken.
  bool enqueue(const std::vector<Operation>& operations);
  bool put(cudaStream_t stream, std::string what, std::function<void()> run, const std::vector<fake_cuda::Range>& reads,
           const std::vector<fake_cuda::Range>& writes);
  void wait_until_idle();
  int count(const std::string& name);
  std::string who() const { return "rank " + std::to_string(rank_); }

  const int size_;
  const int rank_;
  const int device_;
  const int gpu_;  // its index on the host, whatever CUDA_VISIBLE_DEVICES says
  const std::string id_;
  std::unique_ptr<World> world_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> calls_{0};
  std::atomic<int> pending_{0};  // operations in streams
  std::atomic<int> remote_{0};   // times that the state is a remote error; below 0: for good
  std::uint64_t round_ = 0;      // of the stream's thread
  std::mutex mutex_;             // over what follows
  std::thread job_;
  bool in_progress_ = false;
  bool job_done_ = false;
  ncclResult_t result_ = ncclSuccess;
  enum class Life { begun, finalizing, finalized, destroyed, aborted } life_ = Life::begun;
  std::map<std::string, int> counts_;
  std::set<void*> registered_;
};

}  // namespace lockstep::fake_nccl
