// SPDX-License-Identifier: Apache-2.0
// A queue from the library's log to the launcher's console.
//
// The store's thread logs and the main thread owns the console, so a line that went straight to stderr could cut into a
// rank's line or a progress bar. While this object lives, log lines wait here for take(). At most one exists at a time;
// the main thread makes and reads it.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/base/waking_queue.h"
#include "runtime/base/logging.h"

namespace lockstep::launcher {

class LogRelay {
 public:
  // Limit of waiting lines; further lines are counted and dropped. A thread that logs never waits.
  static constexpr std::size_t kMostLines = 1000;

  // Throws SystemError.
  LogRelay();
  // Prints the remaining lines to stderr; later lines go there too.
  ~LogRelay();
  LogRelay(const LogRelay&) = delete;
  LogRelay& operator=(const LogRelay&) = delete;

  // Descriptor that is readable while lines wait.
  int fd() const { return lines_.fd(); }
  // Returns lines such as "warning: text", in order; the last one states the number of dropped lines, if there are any.
  std::vector<std::string> take();

 private:
  void put(LogLevel level, std::string_view text);

  WakingQueue<std::string> lines_{kMostLines};
  std::atomic<std::size_t> dropped_{0};
};

}  // namespace lockstep::launcher
