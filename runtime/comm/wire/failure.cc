#include "runtime/comm/wire/failure.h"

#include "runtime/base/error.h"
#include "runtime/base/logging.h"

namespace lockstep::wire {
namespace {

constexpr std::string_view kKey = "failure";

}  // namespace

Failure::Known Failure::first_in_store(const Known& own) const {
  try {
    const std::string text =
        store_->compare_set(kKey, "", static_cast<char>('0' + static_cast<int>(own.cause)) + own.text);
    const int cause = text.empty() ? 0 : text.front() - '0';
    if (cause >= static_cast<int>(Cause::peer_lost) && cause <= static_cast<int>(Cause::mismatch)) {
      return {static_cast<Cause>(cause), text.substr(1)};
    }
  } catch (const Error& error) {
    // The store may have died with the rank that hosts it; each rank then knows what it saw itself.
    log_debug("the cause of a failure could not be put into the store: {}", error.what());
  }
  return own;
}

bool Failure::settle(const Known& cause) {
  MutexLock lock(mutex_);
  if (cause_) return false;
  cause_ = cause;
  happened_.store(true, std::memory_order_release);
  return true;
}

void Failure::propose(Cause cause, const std::string& text) {
  if (happened()) return;
  if (settle(first_in_store({cause, text}))) on_cause_();
}

void Failure::adopt(Cause cause, const std::string& text) {
  if (settle({cause, text})) on_cause_();
}

void Failure::fail(Cause cause, const std::string& text) {
  propose(cause, text);
  raise();
}

Failure::Known Failure::known() const {
  MutexLock lock(mutex_);
  return *cause_;
}

void Failure::raise() const {
  const Known cause = known();
  switch (cause.cause) {
    case Cause::timeout: throw Timeout(cause.text);
    case Cause::mismatch: throw Mismatch(cause.text);
    case Cause::peer_lost: break;
  }
  throw PeerLost(cause.text);
}

}  // namespace lockstep::wire
