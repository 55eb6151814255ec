// SPDX-License-Identifier: Apache-2.0
// Keeps an exception of this rank's own while it trains, and tells the other ranks of it.
//
// If the other ranks wait for this one (in a backward, between micro-batches, in a layer's collective), they are told
// at once: the group fails on every rank with "rank 1 (host node7, pid 4711) failed in the backward of step 3: TEXT".
// Elsewhere a program may catch the exception and continue, and the text is kept until the next forward: the other
// ranks get it if an exception unwinds the object that trains. The launcher always gets it, because it may have to say
// why a rank left. With a single rank nothing is sent.
//
// Threads: one at a time.
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

// The message of an exception of any type; LibTorch's without the backtrace.
LOCKSTEP_INTERNAL_API std::string message_of(const std::exception_ptr& exception);
// This rank's failure as the other ranks get it: "save_weights: rank 0 (host node7, pid 4711) failed: TEXT", with the
// errno of a SystemError. `operation` may be empty, and then has no colon.
Cause failure_of_this_rank(const ProcessGroup& group, std::string_view operation, const std::exception_ptr& exception);

class OwnFailure {
 public:
  explicit OwnFailure(std::shared_ptr<ProcessGroup> group);

  // Keeps an exception. `where` is "the forward of step 3". A failure of the group, such as a PeerLost, is not kept.
  void keep(std::string_view where, const std::exception_ptr& exception) noexcept;
  void keep(std::string_view where, std::string_view text) noexcept;
  void forget() { text_.clear(); }
  // The kept text: "failed in the forward of step 3: TEXT"; empty if nothing is kept.
  const std::string& text() const { return text_; }

  // Fails the group on every rank with the kept text; does nothing without one.
  void tell() noexcept;
  // For the destructor of the object that trains: while an exception unwinds it, fails the group with the kept text. If
  // the other ranks wait for this one, it also does so for an exception that no call of lockstep has seen.
  void tell_if_unwinding(bool others_wait) noexcept;

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::string text_;
  UnwindGuard unwind_guard_;
  OwnerProcess owner_;
};

}  // namespace lockstep
