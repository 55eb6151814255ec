#include "runtime/comm/wire/failure.h"

#include <exception>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::wire {
namespace {

constexpr std::string_view kKey = "failure";

Failure::Known ask(store::Store& store, const Failure::Known& own) {
  try {
    const std::string text =
        store.compare_set(kKey, "", static_cast<char>('0' + static_cast<int>(own.cause)) + own.text);
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

}  // namespace

// A request to the store ends after half a minute if nobody answers. So a thread makes it, which is left behind then.
Failure::Known Failure::first_in_store(const Known& own) const {
  struct Question {
    Mutex mutex;
    Condition changed;
    std::optional<Known> answer GUARDED_BY(mutex);
  };
  std::shared_ptr<store::Store> of_the_group;
  {
    MutexLock lock(mutex_);
    of_the_group = store_;
  }
  if (of_the_group == nullptr) return own;
  const auto question = std::make_shared<Question>();
  std::thread asker;
  try {
    asker = start_quiet_thread([question, store = std::move(of_the_group), own] {
      Known answer = ask(*store, own);
      MutexLock lock(question->mutex);
      question->answer = std::move(answer);
      question->changed.notify_all();
    });
  } catch (const std::exception& error) {
    log_warn("no thread to tell the store of a failure: {}", error.what());
    return own;
  }
  const Deadline patience = Deadline::after(kStorePatience);
  std::optional<Known> answer;
  {
    MutexLock lock(question->mutex);
    while (!question->answer && question->changed.wait_until(question->mutex, patience)) {
    }
    answer = question->answer;
  }
  if (answer) {
    asker.join();  // or it could be the last to hold the store, which rank 0 hosts
    return *answer;
  }
  asker.detach();
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

void Failure::abandon(const std::string& text) {
  adopt(Cause::peer_lost, text);
  std::shared_ptr<store::Store> store;  // destroyed without the lock: rank 0's waits for the others to leave
  MutexLock lock(mutex_);
  store.swap(store_);
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
