// SPDX-License-Identifier: Apache-2.0
// OwnFailure keeps an exception that this rank throws during training, and tells the other ranks of the exception.
//
// If the other ranks wait for this rank (in a backward, between micro-batches, in a layer's collective), this rank
// sends the failure to the other ranks at once. A failure that a rank sends makes the group fail on every rank with a
// message such as "rank 1 (host node7, pid 4711) failed in the backward of step 3: <text>". If no rank waits, the
// program may catch the exception and continue, so OwnFailure keeps the exception's text until the next forward. The
// other ranks get the kept text if an exception unwinds the object that trains (a DistributedDataParallel). The
// launcher always gets the exception's text, because the launcher may have to say why a rank left. With a single rank
// nothing is sent.
//
// Threads: one thread at a time.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/owner_process.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/job/cause.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/unwind_guard.h"

namespace lockstep {

// Returns the message of an exception of any type. message_of() leaves out the backtrace of a LibTorch exception.
LOCKSTEP_INTERNAL_API std::string message_of(const std::exception_ptr& exception);
// Returns a Cause that reports this rank's failure to the other ranks. The Cause has the errno if `exception` is a
// SystemError, and a text such as "save_weights: rank 0 (host node7, pid 4711) failed: <message>". If `operation` is
// empty, the Cause's text begins with the rank.
Cause failure_of_this_rank(const ProcessGroup& group, std::string_view operation, const std::exception_ptr& exception);

class OwnFailure {
 public:
  explicit OwnFailure(std::shared_ptr<ProcessGroup> group);

  // Keeps the text of `exception`, unless `exception` is a failure of the group such as a PeerLost. `where` names the
  // place of the failure, such as "the forward of step 3".
  void keep(std::string_view where, const std::exception_ptr& exception) noexcept;
  void keep(std::string_view where, std::string_view text) noexcept;
  void forget() { text_.clear(); }
  // Returns the kept text, such as "failed in the forward of step 3: <message>". The kept text is empty if no failure
  // is kept.
  const std::string& text() const { return text_; }

  // Fails the group on every rank with the kept text. Does nothing if no text is kept.
  void tell() noexcept;
  // Fails the group with the kept text if an exception is unwinding the object that trains, whose destructor calls
  // tell_if_unwinding(). If `others_wait` is true, also fails the group for an exception that no call of lockstep
  // has seen.
  void tell_if_unwinding(bool others_wait) noexcept;

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::string text_;
  UnwindGuard unwind_guard_;
  OwnerProcess owner_;
};

}  // namespace lockstep
