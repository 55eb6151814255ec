// SPDX-License-Identifier: Apache-2.0
// The memory that a group has given out: NCCL's own, registered with the communicator, where every rank could get it,
// else the device's.
//
// Registration is all ranks' or nobody's, with equal sizes: NCCL demands it. So the ranks agree at each step of the
// way, and memory that every rank has dropped is given back at the next allocate(); what is left, when the group and
// its user have both let it go. Nothing is given back before the device has done what was put into its streams until
// then, so a program may drop an arena that its kernels still use.
//
// Threads: the group's one thread, but deregister_all().
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/nccl/pending_call.h"

namespace lockstep::nccl {

class NcclEngine;

class Arenas {
 public:
  explicit Arenas(NcclEngine& engine) : engine_(engine) {}

  // Collective, by way of `group`. Throws BackendUnavailable with the reason of each rank that could not, Mismatch, and
  // Timeout.
  Arena allocate(ProcessGroup& group, std::size_t bytes);
  // Before the communicator ends; a thread that may call NCCL.
  void deregister_all(const LaunchContext& context) EXCLUDES(mutex_);

 private:
  // The memory that one rank got.
  struct Taken {
    std::shared_ptr<void> memory;
    bool is_nccls = false;
    std::string problem;
  };
  struct Given {
    std::int64_t number = 0;
    std::weak_ptr<void> owner;     // the user's
    std::shared_ptr<void> memory;  // ours, while it is registered
    void* handle = nullptr;        // of the registration
  };

  bool none_given() EXCLUDES(mutex_);
  // The numbers of what this rank's user has dropped, a comma behind each.
  std::string dropped() EXCLUDES(mutex_);
  void give_back(const std::vector<std::string>& dropped_by_rank) EXCLUDES(mutex_);
  // Keeps those of `gone` that are still registered.
  void keep(std::vector<Given> gone, const std::vector<void*>& registered) EXCLUDES(mutex_);
  Taken take_from_device(std::size_t bytes);
  // The handle; null if one of the ranks could not.
  void* register_with(ProcessGroup& group, std::byte* data, std::size_t bytes);

  NcclEngine& engine_;
  std::int64_t next_ = 1;  // of the group's thread
  Mutex mutex_;
  std::deque<Given> given_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::nccl
