// SPDX-License-Identifier: Apache-2.0
// One NCCL communicator. Non-blocking: every call returns at once, and state() says when it has taken effect.
//
// Threads: one at a time, which holds a CommunicatorLock and has the device current. abort() and destroy() take the
// communicator from the others themselves: what comes later throws.
// Failure: CallFailed with NCCL's own words.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/nccl/api.h"

namespace lockstep::nccl {

// An NCCL call that failed. The engine decides what it means for the group.
class CallFailed : public Error {
 public:
  CallFailed(const Api& api, const char* call, ncclResult_t result, ncclComm_t comm);
  ncclResult_t result() const { return result_; }
  // A peer's death looks like this, and whoever knows which rank it was may be about to tell.
  bool may_be_a_consequence() const { return result_ != ncclInvalidArgument && result_ != ncclInvalidUsage; }

 private:
  ncclResult_t result_;
};

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  std::string name;  // in NCCL's own log
  // Most multiprocessors that a collective takes; NCCL's choice if empty.
  std::optional<int> max_ctas = {};
};

class Communicator {
 public:
  Communicator(const Api& api, CommunicatorOptions options) : api_(api), options_(std::move(options)) {}
  // Aborts nothing: NCCL's memory is given up if neither destroy() nor abort() was called.
  ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Begins to meet the others; every rank does. Then ask state().
  void begin(const ncclUniqueId& id);
  // ncclInProgress until what was called last has taken effect, then ncclSuccess; or what went wrong since, on this
  // rank or another, as far as NCCL knows.
  ncclResult_t state();
  // True once what was called last has taken effect. Throws CallFailed for what went wrong since; for a remote error
  // only once that has lasted.
  bool is_through();

  // A pair around the calls that are to go to the device together. group_end() takes the result of what was called in
  // between; ncclInProgress is not an error.
  void group_start() { call("ncclGroupStart", api_.group_start()); }
  void group_end() { call("ncclGroupEnd", api_.group_end()); }
  // Takes a result: throws if it is an error.
  void call(const char* name, ncclResult_t result) const;

  // The end of the orderly way: begins to flush; state() says when it is done; then destroy(). That waits for the
  // device, whatever runs there, and may wait for the other ranks of the host.
  void finalize() { call("ncclCommFinalize", api_.comm_finalize(get())); }
  void destroy();
  // The other end: kernels that wait for peers leave. Waits for the device too, and may block for ever. True if NCCL
  // says that it went well, or nothing was left to abort. Calls after it throw.
  bool abort();

  void* register_memory(void* data, std::size_t bytes);
  void deregister(void* handle) { call("ncclCommDeregister", api_.comm_deregister(get(), handle)); }

  // Throws Error without a communicator: not begun, destroyed, or aborted.
  ncclComm_t get() const;
  const Api& api() const { return api_; }

 private:
  const Api& api_;
  const CommunicatorOptions options_;
  std::atomic<ncclComm_t> comm_{nullptr};
  std::optional<comm::ActiveTimeout> error_patience_;  // set: NCCL says that something is wrong

  friend class CommunicatorLock;
  Mutex mutex_;
  Condition freed_;
  bool is_taken_ GUARDED_BY(mutex_) = false;
};

// The one thread that may call NCCL for a communicator. No mutex: a call may hang, so who waits for it has a deadline.
class CommunicatorLock {
 public:
  CommunicatorLock(Communicator& communicator, const Deadline& deadline);
  ~CommunicatorLock();
  CommunicatorLock(const CommunicatorLock&) = delete;
  CommunicatorLock& operator=(const CommunicatorLock&) = delete;

  // False: another thread was in its call until the deadline.
  bool held() const { return held_; }

 private:
  Communicator& communicator_;
  bool held_ = false;
};

}  // namespace lockstep::nccl
