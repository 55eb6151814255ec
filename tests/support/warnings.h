// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/logging.h"

namespace lockstep::testing {

// Lines of the log at or above a warning, while it lives.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level >= LogLevel::warn) lines_.emplace_back(text);
    });
  }
  ~Warnings() { set_log_sink({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::int64_t count(std::string_view part) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::count_if(lines_, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace lockstep::testing
