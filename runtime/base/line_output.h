// SPDX-License-Identifier: Apache-2.0
// Writes lines to a descriptor without waiting: bytes that the descriptor does not take at once are kept, in order, and
// a thread writes them when somebody reads again. So a log line delays no step, no stop and no rescue.
//
// In normal operation each line is written by its caller, whole, before write() returns. Once `most_kept` bytes are
// kept, further lines are lost, and a line in their place says how many.
//
// Threads: any. Fork: a child has nothing of what its parent keeps.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/deadline.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"

namespace lockstep {

class LineOutput {
 public:
  static constexpr std::size_t kMostKept = std::size_t{1} << 20;

  explicit LineOutput(int fd, std::size_t most_kept = kMostKept) : fd_(fd), most_kept_(most_kept) {}
  // Lines that are kept are lost.
  ~LineOutput();
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  // The text behind "[lockstep " in the line about lost ones.
  void set_label(const std::string& label);
  // Lines, each with its newline. Without one at its end it is a redraw of a bar, which the next one replaces: that is
  // left out where it can't be written at once.
  void write(std::string_view lines) noexcept;
  // Waits until the kept lines are written. False if some are left at the deadline, or lost.
  bool flush(const Deadline& deadline) noexcept;
  // Ends the thread, for good: flush() and the next write() write the lines that are kept from then on.
  void end_thread() noexcept;

  // Around fork(2), from pthread_atfork(3).
  void before_fork() NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_in_parent() NO_THREAD_SAFETY_ANALYSIS;
  void after_fork_in_child() NO_THREAD_SAFETY_ANALYSIS;

 private:
  void keep(std::string_view lines) REQUIRES(mutex_);
  std::string line_of_lost() const REQUIRES(mutex_);
  // Writes the kept lines, and behind them the line about lost ones. False if some of them wait for a reader.
  bool write_kept() REQUIRES(mutex_);
  void start_thread() noexcept REQUIRES(mutex_);
  void run(const EventFd& wake);

  const int fd_;
  const std::size_t most_kept_;
  Mutex mutex_;
  std::string label_ GUARDED_BY(mutex_);
  std::string kept_ GUARDED_BY(mutex_);
  std::size_t written_ GUARDED_BY(mutex_) = 0;  // bytes of kept_
  std::int64_t lost_ GUARDED_BY(mutex_) = 0;    // lines, behind kept_
  bool is_ending_ GUARDED_BY(mutex_) = false;
  // By pointer: a child releases objects that only its parent has.
  std::unique_ptr<EventFd> wake_ GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> thread_ GUARDED_BY(mutex_);
};

// This process's stderr, for all that the library says there: log, bar, last words. It lasts as long as the process.
// exit(3) waits until the kept lines are written, and no longer than kStderrPatience; code that ends the process in
// another way calls flush_stderr().
inline constexpr std::chrono::milliseconds kStderrPatience{1000};
LineOutput& stderr_output();
LOCKSTEP_INTERNAL_API void flush_stderr() noexcept;

}  // namespace lockstep
