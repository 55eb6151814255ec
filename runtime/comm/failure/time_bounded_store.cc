// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/failure/time_bounded_store.h"

#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/active_timeout.h"

namespace lockstep::comm {
namespace {

constexpr auto kReady = std::future_status::ready;

}  // namespace

// A request to a store that does not answer ends after half a minute. So a thread makes the request, and is left behind
// then.
std::optional<std::string> TimeBoundedStore::ask(std::function<std::string(store::Store&)> question) {
  std::shared_ptr<store::Store> store;
  {
    MutexLock lock(mutex_);
    const bool is_busy = left_behind_.valid() && left_behind_.wait_for(std::chrono::seconds(0)) != kReady;
    if (store_ == nullptr || is_busy) return {};
    store = store_;
  }
  std::packaged_task<Answer()> request([store = std::move(store), question = std::move(question)]() mutable -> Answer {
    // The future keeps this closure alive, so the call takes the store out of it.
    const auto asked = std::move(store);
    try {
      return question(*asked);
    } catch (const Error& error) {
      // The store may have died with the rank that hosts it; each rank then has only the failure that it saw itself.
      log_debug("the store could not be asked about the end of a group: {}", error.what());
      return {};
    }
  });
  std::shared_future<Answer> answer = request.get_future().share();
  std::thread asker;
  try {
    asker = start_quiet_thread(std::move(request));
  } catch (const std::exception& error) {
    log_warn("no thread to ask the store about the end of a group: {}", error.what());
    return {};
  }
  ActiveTimeout patience(kPatience);
  while (answer.wait_for(patience.next().remaining()) != kReady) {
    if (!patience.over()) continue;
    asker.detach();
    MutexLock lock(mutex_);
    left_behind_ = std::move(answer);
    return {};
  }
  asker.join();  // or it could be the last to hold the store, which rank 0 hosts
  return answer.get();
}

void TimeBoundedStore::release() {
  std::shared_ptr<store::Store> store;  // destroyed without the lock: rank 0's waits for the others to leave
  MutexLock lock(mutex_);
  store.swap(store_);
}

}  // namespace lockstep::comm
