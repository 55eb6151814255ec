// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank's output, cut into lines and redraws of a progress bar.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// A line ends in '\n' or "\r\n". Text that ends in '\r' alone is a redraw: it stands until the next one.
class LineSplitter {
 public:
  enum class Kind { line, redraw };
  // `text` is without its end and lives for the call only.
  using Sink = std::function<void(Kind kind, std::string_view text)>;

  // A line longer than this is cut, so that a rank without newlines can't fill the launcher's memory.
  static constexpr std::size_t kMaxLine = 1 << 20;

  void feed(std::string_view bytes, const Sink& sink);
  // The stream has ended: what came without an end is a line.
  void finish(const Sink& sink);
  // What has come without an end so far.
  std::string_view partial() const { return partial_; }

 private:
  std::string partial_;
  std::string last_redraw_;  // while after_return_: it becomes a line if '\n' comes next
  bool after_return_ = false;
};

}  // namespace lockstep::launcher
