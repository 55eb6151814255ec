// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/failure/failure.h"

#include <string>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/active_timeout.h"

namespace lockstep::comm {

void Failure::start() {
  channel_.subscribe([this](std::string_view word) {
    if (const auto cause = decode_cause(word)) adopt(*cause);
  });
}

// The cause is not set before it comes back as the first: set at once, this rank could throw its own cause while all
// others read another one.
void Failure::propose_async(const Cause& cause) {
  const std::string word = encode(cause, kMostBytes);
  bool is_new = false;
  {
    MutexLock lock(mutex_);
    if (cause_) return;
    is_new = !proposed_;
    if (is_new) proposed_ = decode_cause(word).value_or(cause);  // cut as the others read it
  }
  if (is_new) channel_.say(word);
  if (!channel_.is_answered()) decide_alone();
}

void Failure::propose(const Cause& cause) {
  propose_async(cause);
  ActiveTimeout patience(kPatience);
  while (!happened() && channel_.is_answered() && !patience.over()) {
    MutexLock lock(mutex_);
    if (!cause_) changed_.wait_until(mutex_, patience.next());
  }
  decide_alone();
}

void Failure::decide_alone() {
  std::optional<Cause> own;
  {
    MutexLock lock(mutex_);
    if (!cause_) own = proposed_;
  }
  if (own) adopt(*own);
}

void Failure::adopt(const Cause& cause) {
  {
    MutexLock lock(mutex_);
    if (cause_) return;
    // The cause first: a thread that sees happened_ reads the cause at once.
    cause_ = cause;
    happened_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  on_cause_();
}

void Failure::fail(const Cause& cause) {
  propose(cause);
  raise();
}

Cause Failure::known() const {
  MutexLock lock(mutex_);
  return *cause_;
}

void Failure::raise() const {
  const Cause cause = known();
  if (on_throw_) on_throw_(cause);
  throw_error(cause.as_read_by(rank_));
}

}  // namespace lockstep::comm
