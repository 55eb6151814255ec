// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "lockstep/base/error.h"

namespace lockstep::net {
namespace {

constexpr std::uint64_t kWakeupId = 0;

template <typename Act>
void guarded(const EventLoop::OnError& on_error, Act&& act) {
  try {
    act();
  } catch (const std::exception& error) {
    if (!on_error) throw;
    on_error(error);
  }
}

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw SystemError("epoll_create1", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeupId;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.fd(), &event) != 0) throw SystemError("epoll_ctl(ADD)", errno);
}

EventLoop::~EventLoop() = default;

void EventLoop::add(int fd, std::uint32_t events, Handler handler) {
  const std::uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  // The maps come first: they may run out of memory, and nothing has to be taken back from the kernel then.
  try {
    id_of_fd_[fd] = id;
    handlers_[id] = std::make_shared<Handler>(std::move(handler));
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw SystemError("epoll_ctl(ADD)", errno);
  } catch (...) {
    id_of_fd_.erase(fd);
    handlers_.erase(id);
    throw;
  }
}

void EventLoop::change(int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id_of_fd_.at(fd);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) throw SystemError("epoll_ctl(MOD)", errno);
}

void EventLoop::remove(int fd) {
  const auto found = id_of_fd_.find(fd);
  if (found == id_of_fd_.end()) return;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) != 0) throw SystemError("epoll_ctl(DEL)", errno);
  handlers_.erase(found->second);
  id_of_fd_.erase(found);
}

EventLoop::TimerId EventLoop::run_after(std::chrono::nanoseconds delay, Task task) {
  // Beyond this the sum would overflow; nobody waits for it.
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365 * 100);
  const TimerId timer{std::chrono::steady_clock::now() + std::min(delay, kLongest), next_timer_++};
  timers_.emplace(timer, std::move(task));
  return timer;
}

void EventLoop::run(const OnError& on_error) {
  std::array<epoll_event, 256> events;
  while (!stopped_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms());
    if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
    for (int i = 0; i < count; ++i) {
      const auto& event = events[static_cast<std::size_t>(i)];
      const std::uint64_t id = event.data.u64;  // not aligned there
      if (id == kWakeupId) {
        run_posted(on_error);
        continue;
      }
      const auto found = handlers_.find(id);
      if (found == handlers_.end()) continue;  // An earlier handler of this batch removed it.
      const auto handler = found->second;      // It may remove itself while it runs.
      guarded(on_error, [&] { (*handler)(event.events); });
    }
    // Behind the batch: a handler may cancel a timer that is due, which then does not run.
    run_timers(on_error);
  }
}

int EventLoop::timeout_ms() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.time - std::chrono::steady_clock::now();
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<long long>(milliseconds, 0, INT_MAX));
}

void EventLoop::run_timers(const OnError& on_error) {
  const auto now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first.time <= now) {
    const Task task = std::move(timers_.begin()->second);
    // Erased before it runs: the task may start timers or cancel them, its own number too.
    timers_.erase(timers_.begin());
    guarded(on_error, task);
  }
}

void EventLoop::post(Task task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  // Behind the push, and without the lock, which the loop takes as soon as it wakes.
  wakeup_.notify();
}

void EventLoop::stop() {
  post([this] { stopped_ = true; });
}

void EventLoop::run_posted(const OnError& on_error) {
  // Cleared before the tasks are taken: a task that is posted in between makes the loop wake once more. Cleared after,
  // it would lie until something else wakes the loop.
  wakeup_.clear();
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    tasks.swap(posted_);
  }
  // Without the lock: a task may post another one.
  for (const Task& task : tasks) guarded(on_error, task);
}

}  // namespace lockstep::net
