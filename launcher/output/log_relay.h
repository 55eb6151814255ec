// SPDX-License-Identifier: Apache-2.0
// The library's log on its way to the launcher's console.
//
// The store's thread logs, the main thread owns the console: a line that went straight to stderr could cut into a
// rank's line or a progress bar. While this object lives, log lines wait here for take(). One at a time; made and read
// by the main thread.
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
  // Lines that wait at one time; what comes beyond is counted, not kept. Whoever logs is never delayed.
  static constexpr std::size_t kMostLines = 1000;

  // Throws SystemError.
  LogRelay();
  // What nobody took goes to stderr, as do later lines.
  ~LogRelay();
  LogRelay(const LogRelay&) = delete;
  LogRelay& operator=(const LogRelay&) = delete;

  // Readable while lines wait.
  int fd() const { return lines_.fd(); }
  // "warning: text", in order; the last one says how many were dropped, if any were.
  std::vector<std::string> take();

 private:
  void put(LogLevel level, std::string_view text);

  WakingQueue<std::string> lines_{kMostLines};
  std::atomic<std::size_t> dropped_{0};
};

}  // namespace lockstep::launcher
