// SPDX-License-Identifier: Apache-2.0
// The calls of a group that are started and not done, in the program's order.
//
// Threads: any. The list's lock is held for moments, never while a driver is asked: a driver that hangs holds up only
// who retires.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/comm/nccl/collective.h"
#include "runtime/comm/nccl/flight_record.h"
#include "runtime/comm/nccl/goodbye.h"
#include "runtime/comm/nccl/message.h"

namespace lockstep::nccl {

class CallList {
 public:
  // Numbers the call among its like, and adds it. The program's thread.
  void add(const std::shared_ptr<NcclCollective>& collective);
  void add(const std::shared_ptr<NcclMessage>& message);
  // The collective that was started last.
  std::uint64_t last() const { return last_.load(std::memory_order_relaxed); }
  // Messages started so far, by the other rank.
  std::map<int, MessageCounts> messages() const;

  std::shared_ptr<PendingCall> front() const;
  // The call that the device is in or comes to next: the last one that was given to NCCL, else the first.
  std::string describe_current() const;
  // Calls that no stream waits for.
  struct Counts {
    std::size_t collectives = 0;
    std::size_t messages = 0;
  };
  Counts not_handed_on() const;
  // The events behind what the program computes for the calls that were given to NCCL.
  std::vector<std::shared_ptr<void>> ready_events() const;

  // Finishes and removes the calls that the device has done, while `stopped` is false. One whose result is wrong stays,
  // and the text says why.
  struct Retired {
    bool any = false;
    std::optional<std::string> problem = {};
  };
  template <typename Stopped>
  Retired retire(DeviceRuntime& runtime, Stopped stopped) EXCLUDES(retire_mutex_, mutex_) {
    Retired result;
    MutexLock retiring(retire_mutex_);
    while (!is_wrong_) {
      const std::shared_ptr<PendingCall> call = front();
      if (!call || !call->has_reached(PendingCall::State::launched)) break;
      // An aborted kernel ends too. Before the failure nothing is aborted, so the failure is looked at behind the
      // event.
      if (!runtime.reached(call->finished.get()) || stopped()) break;
      call->finish();
      result.problem = call->problem();
      is_wrong_ = result.problem.has_value();  // it is finished once, and told once
      if (is_wrong_) break;
      pop(*call);
      result.any = true;
    }
    return result;
  }
  void clear();

  FlightRecord& flight_record() { return flight_record_; }
  const FlightRecord& flight_record() const { return flight_record_; }

 private:
  void pop(PendingCall& call) EXCLUDES(mutex_);

  FlightRecord flight_record_;
  Mutex retire_mutex_;  // before mutex_
  bool is_wrong_ GUARDED_BY(retire_mutex_) = false;
  mutable Mutex mutex_;
  std::deque<std::shared_ptr<PendingCall>> calls_ GUARDED_BY(mutex_);
  std::map<int, MessageCounts> messages_ GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> last_{0};  // written under the lock
};

}  // namespace lockstep::nccl
