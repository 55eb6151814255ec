// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/line_splitter.h"

#include <utility>

namespace lockstep::launcher {

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      sink(Kind::line, last_redraw_);
      bytes.remove_prefix(1);
      continue;
    }
    const auto end = bytes.find_first_of("\n\r");
    const auto text = bytes.substr(0, end);
    if (partial_.size() + text.size() > kMaxLine) {
      const auto room = kMaxLine - partial_.size();
      partial_.append(text.substr(0, room));
      sink(Kind::line, std::exchange(partial_, {}));
      bytes.remove_prefix(room);
      continue;
    }
    partial_.append(text);
    if (end == std::string_view::npos) return;
    const bool is_return = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!is_return || bytes.starts_with('\n')) {
      if (is_return) bytes.remove_prefix(1);
      sink(Kind::line, partial_);
    } else if (!partial_.empty()) {  // a return at the line's start draws nothing
      sink(Kind::redraw, partial_);
      last_redraw_ = partial_;
      after_return_ = bytes.empty();  // else the next byte is known, and no '\n'
    }
    partial_.clear();
  }
}

void LineSplitter::finish(const Sink& sink) {
  after_return_ = false;
  if (!partial_.empty()) sink(Kind::line, std::exchange(partial_, {}));
}

}  // namespace lockstep::launcher
