// SPDX-License-Identifier: Apache-2.0
// A splitter of a rank's output into lines and redraws of a progress bar.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// A line ends in '\n' or "\r\n". Text that ends in '\r' alone is a redraw: it stands until the next one.
class LineSplitter {
 public:
  enum class Kind { line, redraw };
  // `text` lacks its end, and is valid only during the call.
  using Sink = std::function<void(Kind kind, std::string_view text)>;

  // Limit at which a line is split, so that a rank without newlines can't fill the launcher's memory.
  static constexpr std::size_t kMaxLine = 1 << 20;

  void feed(std::string_view bytes, const Sink& sink);
  // Call it at the stream's end: bytes without an end become a line.
  void finish(const Sink& sink);
  // Returns the bytes that have no end yet.
  std::string_view partial() const { return partial_; }

 private:
  std::string partial_;
  std::string last_redraw_;  // set while after_return_: it becomes a line if '\n' follows
  bool after_return_ = false;
};

}  // namespace lockstep::launcher
