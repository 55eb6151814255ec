#include "runtime/comm/failure/patient_store.h"

#include <exception>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/patience.h"

namespace lockstep::comm {

struct PatientStore::Asked {
  Mutex mutex;
  Condition changed;
  bool over GUARDED_BY(mutex) = false;
  std::optional<std::string> answer GUARDED_BY(mutex);

  bool is_over() {
    MutexLock lock(mutex);
    return over;
  }
};

// A request to the store ends after half a minute if nobody answers. So a thread makes it, which is left behind then.
std::optional<std::string> PatientStore::ask(std::function<std::string(store::Store&)> question) {
  std::shared_ptr<store::Store> store;
  {
    MutexLock lock(mutex_);
    if (store_ == nullptr || (left_behind_ != nullptr && !left_behind_->is_over())) return {};
    store = store_;
  }
  const auto asked = std::make_shared<Asked>();
  std::thread asker;
  try {
    asker = start_quiet_thread([asked, store = std::move(store), question = std::move(question)] {
      std::optional<std::string> answer;
      try {
        answer = question(*store);
      } catch (const Error& error) {
        // The store may have died with the rank that hosts it; each rank then knows what it saw itself.
        log_debug("the store could not be asked about the end of a group: {}", error.what());
      }
      MutexLock lock(asked->mutex);
      asked->over = true;
      asked->answer = std::move(answer);
      asked->changed.notify_all();
    });
  } catch (const std::exception& error) {
    log_warn("no thread to ask the store about the end of a group: {}", error.what());
    return {};
  }
  Patience patience(kPatience);
  bool over = false;
  std::optional<std::string> answer;
  {
    MutexLock lock(asked->mutex);
    while (!asked->over && !patience.over()) asked->changed.wait_until(asked->mutex, patience.next());
    over = asked->over;
    answer = asked->answer;
  }
  if (over) {
    asker.join();  // or it could be the last to hold the store, which rank 0 hosts
    return answer;
  }
  asker.detach();
  MutexLock lock(mutex_);
  left_behind_ = asked;
  return {};
}

void PatientStore::release() {
  std::shared_ptr<store::Store> store;  // destroyed without the lock: rank 0's waits for the others to leave
  MutexLock lock(mutex_);
  store.swap(store_);
}

}  // namespace lockstep::comm
