// SPDX-License-Identifier: Apache-2.0
// State that the parts of a group's engine share: the group's ranks, its communicator and stream, its calls, and its
// failure.
//
// Threads: any, but where a member says otherwise. Lives as long as the NcclEngine that it is a part of.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/backend.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/failure/failure.h"
#include "runtime/comm/nccl/call_list.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/nccl/event_count.h"
#include "runtime/comm/nccl/options.h"

namespace lockstep::nccl {

struct GroupCore {
  // `on_cause`: as Failure's.
  GroupCore(const Api& functions, DeviceRuntime& device_runtime, GroupContext group, Options of_environment,
            std::function<void()> on_cause);

  // "rank 2 (host node7, pid 4711)".
  std::string who(int about) const { return context.roster[static_cast<std::size_t>(about)].describe(); }
  std::string own_name() const { return who(rank); }
  // "rank 2 (...) was in all_reduce 17 (...)".
  std::string where_this_rank_was() const;
  // A cause about rank `about`, as this rank reports it, and the group failed with it. `about` may be this rank, or -1:
  // no single one.
  Cause cause_of(Cause::Kind kind, int about, std::string text) const;
  void propose(Cause::Kind kind, int about, std::string text);
  [[noreturn]] void fail(Cause::Kind kind, int about, std::string text);

  LaunchContext launch_context();
  // Makes NCCL calls, once no other thread does. Throws the cause if the group has failed: the communicator may be
  // aborted from then on.
  template <typename Body>
  auto with_communicator(Body body) {
    for (;;) {
      const CommunicatorLock lock(communicator, Deadline::after(kLook));
      failure.check();
      if (lock.held()) return body();
    }
  }

  // Wakes the threads that wait for this group, in wait_until() or on the process's bell.
  void notify();
  // False if the deadline passed, or the timeout was over, before holds() did.
  template <typename Holds>
  bool wait_until(const Deadline& deadline, Holds holds) const {
    for (;;) {
      const std::uint64_t seen = changed.count();
      if (holds()) return true;
      if (deadline.expired()) return false;
      changed.wait(seen, deadline);
    }
  }
  template <typename Holds>
  bool wait_until(comm::ActiveTimeout patience, Holds holds) const {
    while (!wait_until(patience.next(), holds)) {
      if (patience.over()) return false;
    }
    return true;
  }

  // Between two looks at what others do.
  static constexpr std::chrono::milliseconds kLook{20};

  const Api& api;
  DeviceRuntime& runtime;
  const GroupContext context;
  const Options options;
  const int rank;
  const int size;
  std::weak_ptr<const void> engine;  // set before the first call; held by calls that may be left behind
  mutable EventCount changed;
  comm::Failure failure;
  CallList calls;
  // Made while the group opens, under the CommunicatorLock.
  Communicator communicator;
  std::shared_ptr<void> stream;
  std::shared_ptr<void> world_size;  // on the device
};

}  // namespace lockstep::nccl
