// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/launch_thread.h"

#include <sys/prctl.h>

#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/base/owner_process.h"
#include "runtime/base/logging.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/nccl/event_count.h"

namespace lockstep::nccl {
namespace {

// Questions whether NCCL has launched something without a pause between them, for as long as its own thread takes as a
// rule: 20 to 40 us. With 50 instead an all-reduce of one rank took 31 us in place of 26 on an H100.
constexpr int kLooksAtOnce = 400;
// Between two questions after these.
constexpr std::chrono::microseconds kPause{20};
// Between two looks at a call that waits for what notify() tells of.
constexpr std::chrono::milliseconds kBeat{50};
// Time that the kernel may add to a pause: 50 us by default.
constexpr unsigned long kTimerSlackNs = 1000;
// How long the end waits for a call of the thread's.
constexpr std::chrono::seconds kEndPatience{2};

}  // namespace

// Held by the thread too, so that it can be left behind.
struct LaunchThread::State {
  struct Entry {
    std::shared_ptr<LaunchClient> group;
    std::shared_ptr<PendingCall> call;
  };

  const OwnerProcess owner;
  EventCount changed;
  Mutex mutex;
  std::deque<Entry> queue GUARDED_BY(mutex);
  bool stopped GUARDED_BY(mutex) = false;
  std::thread::id id GUARDED_BY(mutex);

  void run();
  // False at the end.
  bool step();
  // Nothing if the queue is empty.
  std::optional<Entry> front();
  void remove(const LaunchClient& group);
  void pop(const PendingCall& call);

  int looks = 0;  // the thread's: questions in a row
};

void LaunchThread::State::run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  {
    MutexLock lock(mutex);
    id = std::this_thread::get_id();
  }
  while (step()) {
  }
}

std::optional<LaunchThread::State::Entry> LaunchThread::State::front() {
  MutexLock lock(mutex);
  if (queue.empty()) return std::nullopt;
  return queue.front();
}

bool LaunchThread::State::step() {
  // The count before the look: a notify() between the look and the wait then ends the wait at once.
  const std::uint64_t seen = changed.count();
  const std::optional<Entry> next = front();
  if (!next) {
    {
      MutexLock lock(mutex);
      if (stopped) return false;
    }
    changed.wait(seen, Deadline::never());
    return true;
  }
  switch (next->group->advance(*next->call)) {
    case LaunchClient::Progress::launched:
      pop(*next->call);
      looks = 0;
      break;
    case LaunchClient::Progress::gone:
      remove(*next->group);
      looks = 0;
      break;
    case LaunchClient::Progress::in_nccl:
      if (++looks < kLooksAtOnce) {
        std::this_thread::yield();
      } else {
        changed.wait(seen, Deadline::after(kPause));
      }
      break;
    case LaunchClient::Progress::waits: changed.wait(seen, Deadline::after(kBeat)); break;
  }
  return true;
}

// The group may have been removed since the call was taken from the front.
void LaunchThread::State::pop(const PendingCall& call) {
  MutexLock lock(mutex);
  if (!queue.empty() && queue.front().call.get() == &call) queue.pop_front();
}

void LaunchThread::State::remove(const LaunchClient& group) {
  std::deque<Entry> removed;  // destroyed without the lock
  MutexLock lock(mutex);
  std::deque<Entry> kept;
  for (Entry& entry : queue) (entry.group.get() == &group ? removed : kept).push_back(std::move(entry));
  queue.swap(kept);
}

std::shared_ptr<LaunchThread> LaunchThread::of(DeviceId device) {
  static auto& mutex = *new Mutex;  // never destroyed: groups may outlive all statics
  static auto& threads = *new std::map<int, std::weak_ptr<LaunchThread>>;
  MutexLock lock(mutex);
  std::weak_ptr<LaunchThread>& known = threads[device.index];
  auto thread = known.lock();
  // A child of fork() has no such thread.
  if (thread && thread->state_->owner.is_here()) return thread;
  thread.reset(new LaunchThread(device));
  known = thread;
  return thread;
}

LaunchThread::LaunchThread(DeviceId device)
    : state_(std::make_shared<State>()), thread_(device, [state = state_] { state->run(); }) {}

LaunchThread::~LaunchThread() {
  {
    MutexLock lock(state_->mutex);
    state_->stopped = true;
    // The thread may itself be the last to let go of a group.
    if (state_->id == std::this_thread::get_id()) return;
  }
  state_->changed.notify();
  // Without the lock, which the thread needs to see that it is stopped. A thread that is left behind holds its State.
  for (comm::ActiveTimeout patience(kEndPatience); !thread_.wait(patience.next());) {
    if (!patience.over()) continue;
    log_error(
        "nccl: a call of NCCL by this process has not returned, so lockstep ends without waiting for the call's "
        "thread; see whether nvidia-smi answers");
    return;
  }
}

void LaunchThread::enqueue(std::shared_ptr<LaunchClient> group, std::shared_ptr<PendingCall> call) {
  {
    MutexLock lock(state_->mutex);
    state_->queue.push_back({std::move(group), std::move(call)});
  }
  state_->changed.notify();
}

void LaunchThread::remove(const LaunchClient& group) {
  state_->remove(group);
  state_->changed.notify();
}

void LaunchThread::notify() { state_->changed.notify(); }

}  // namespace lockstep::nccl
