// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/line_splitter.h"

#include <algorithm>
#include <utility>

namespace lockstep::launcher {
namespace {

// Returns the end of the text at the front of `bytes`: a newline or a return, or none. Searching for one character is
// several times as fast as searching for either. `newline` is the first newline, which stays valid over several calls:
// thousands of a bar's redraws may come before one.
std::size_t end_of_text(std::string_view bytes, const char*& newline) {
  if (newline < bytes.data()) newline = bytes.data() + std::min(bytes.find('\n'), bytes.size());
  const std::string_view line(bytes.data(), static_cast<std::size_t>(newline - bytes.data()));
  const auto at = line.find('\r');
  if (at != line.npos) return at;
  return line.size() == bytes.size() ? std::string_view::npos : line.size();
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  const char* newline = nullptr;
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      sink(Kind::line, last_redraw_);
      bytes.remove_prefix(1);
      continue;
    }
    const auto end = end_of_text(bytes, newline);
    const auto text = bytes.substr(0, end);
    if (partial_.size() + text.size() > kMaxLine) {
      const auto room = kMaxLine - partial_.size();
      partial_.append(text.substr(0, room));
      sink(Kind::line, std::exchange(partial_, {}));
      bytes.remove_prefix(room);
      continue;
    }
    if (end == std::string_view::npos) {
      partial_.append(text);
      return;
    }
    if (!partial_.empty()) partial_.append(text);
    const std::string_view whole = partial_.empty() ? text : partial_;
    const bool is_return = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!is_return || bytes.starts_with('\n')) {
      if (is_return) bytes.remove_prefix(1);
      sink(Kind::line, whole);
    } else if (!whole.empty()) {  // a return at the beginning of a line draws nothing
      sink(Kind::redraw, whole);
      last_redraw_ = whole;
      after_return_ = bytes.empty();  // else the next byte is known not to be '\n'
    }
    partial_.clear();
  }
}

void LineSplitter::finish(const Sink& sink) {
  after_return_ = false;
  if (!partial_.empty()) sink(Kind::line, std::exchange(partial_, {}));
}

}  // namespace lockstep::launcher
