// SPDX-License-Identifier: Apache-2.0
// Keeps a crowd of bad clients from filling the log: so many lines in a time, then only their number.
//
// One thread. Knows no clock: the time is passed in.
#pragma once

#include <chrono>
#include <cstddef>

namespace lockstep {

class LogLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LogLimit(std::size_t lines, std::chrono::nanoseconds window) : lines_(lines), window_(window) {}

  // True if a line may be written now. False: it is counted, and summary_time() says when to tell how many there were.
  bool admit(Time now) {
    if (now >= start_ + window_) {
      start_ = now;
      written_ = 0;
    }
    if (written_ < lines_) {
      ++written_;
      return true;
    }
    ++left_out_;
    return false;
  }
  Time summary_time() const { return start_ + window_; }
  // How many were counted since the last take_left_out().
  std::size_t left_out() const { return left_out_; }
  std::size_t take_left_out() {
    const std::size_t count = left_out_;
    left_out_ = 0;
    return count;
  }

 private:
  const std::size_t lines_;
  const std::chrono::nanoseconds window_;
  Time start_ = {};
  std::size_t written_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace lockstep
