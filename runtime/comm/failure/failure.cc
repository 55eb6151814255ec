// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/failure/failure.h"

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kKey = "failure";

}  // namespace

Cause Failure::first_in_store(const Cause& own) const {
  const std::string proposed = encode(own, kMostBytes);
  const auto first = store_.ask([proposed](store::Store& store) { return store.compare_set(kKey, "", proposed); });
  // The text that all others read, cut as theirs.
  return decode_cause(first.value_or(proposed)).value_or(own);
}

bool Failure::set_cause(const Cause& cause) {
  MutexLock lock(mutex_);
  if (cause_) return false;
  // The cause first: a thread that sees happened_ reads the cause at once.
  cause_ = cause;
  happened_.store(true, std::memory_order_release);
  return true;
}

void Failure::propose(const Cause& cause) {
  if (happened()) return;
  // The store is asked before the cause is set: set first, this rank could throw its own cause while all others read
  // another one.
  if (set_cause(first_in_store(cause))) on_cause_();
}

void Failure::adopt(const Cause& cause) {
  if (set_cause(cause)) on_cause_();
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
