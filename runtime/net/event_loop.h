// SPDX-License-Identifier: Apache-2.0
// One thread that serves many sockets: epoll, timers, and a way to wake it from other threads.
//
// Everything but post() and stop() belongs to the thread inside run(), and before run() to whoever set the loop up.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/base/event_fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::net {

class EventLoop {
 public:
  // Called with the EPOLL* bits that are set.
  using Handler = std::function<void(std::uint32_t events)>;
  using Task = std::function<void()>;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `handler` whenever one of `events` (EPOLLIN, EPOLLOUT; level-triggered) holds for `fd`, and for EPOLLHUP and
  // EPOLLERR in any case. The fd stays the caller's, who calls remove() before closing it.
  void add(int fd, std::uint32_t events, Handler handler);
  // Waits for `events` from now on.
  void change(int fd, std::uint32_t events);
  // A handler may remove any fd, its own too; no handler of a removed fd is called again.
  void remove(int fd);

  // Calls `task` once, `delay` from now, unless it is cancelled before.
  struct TimerId {
    std::chrono::steady_clock::time_point time = {};
    std::uint64_t number = 0;  // 0: no timer
    auto operator<=>(const TimerId&) const = default;
  };
  TimerId run_after(std::chrono::nanoseconds delay, Task task);
  // Nothing if it has run, is running, or was cancelled.
  void cancel(const TimerId& timer) { timers_.erase(timer); }

  // Serves until stop(). An exception of a handler, timer or task goes to `on_error`, and the loop serves on. An
  // exception of on_error, or any without one, ends it.
  using OnError = std::function<void(const std::exception& error)>;
  void run(const OnError& on_error = {});

  // Has the loop's thread run `task` soon. Any thread.
  void post(Task task) EXCLUDES(mutex_);
  // Makes run() return soon, or at once if it has not begun. Any thread.
  void stop();

 private:
  int timeout_ms() const;
  void run_timers(const OnError& on_error);
  void run_posted(const OnError& on_error) EXCLUDES(mutex_);

  UniqueFd epoll_;
  EventFd wakeup_;
  // Events carry the watch's id, never its fd: an event of a closed fd is not mistaken for one of the next that gets
  // its number.
  std::uint64_t next_id_ = 1;
  std::unordered_map<int, std::uint64_t> id_of_fd_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Handler>> handlers_;
  std::map<TimerId, Task> timers_;
  std::uint64_t next_timer_ = 1;
  bool stopped_ = false;

  Mutex mutex_;
  std::vector<Task> posted_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::net
