// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/recent_lines.h"

#include <algorithm>
#include <utility>

namespace lockstep::launcher {

void RecentLines::put(std::string_view lines) {
  MutexLock lock(mutex_);
  kept_.append(lines);
  if (kept_.size() > 2 * kMostBytes) {
    // The kept part begins at a line's beginning; a line longer than the limit is kept as the only one.
    const auto end = kept_.rfind('\n', kept_.size() - kMostBytes - 1);
    const std::size_t gone = end == std::string::npos ? 0 : end + 1;
    kept_.erase(0, gone);
    first_ += gone;
  }
  if (listener_) listener_();
}

RecentLines::Part RecentLines::after(Position from, std::size_t most) const {
  MutexLock lock(mutex_);
  Part part{.missed = from < first_ ? first_ - from : 0};
  const auto begin = static_cast<std::size_t>(std::max(from, first_) - first_);
  auto end = kept_.size();
  if (end - begin > most) {
    end = kept_.rfind('\n', begin + most - 1);
    if (end == std::string::npos || end < begin) end = kept_.find('\n', begin);
    end = std::min(end, kept_.size() - 1) + 1;
  }
  part.text = kept_.substr(begin, end - begin);
  part.next = first_ + end;
  return part;
}

RecentLines::Position RecentLines::last(std::size_t lines) const {
  MutexLock lock(mutex_);
  auto begin = kept_.size();
  for (; lines > 0 && begin > 0; --lines) {
    const auto end = begin == 1 ? std::string::npos : kept_.rfind('\n', begin - 2);
    begin = end == std::string::npos ? 0 : end + 1;
  }
  return first_ + begin;
}

void RecentLines::set_listener(std::function<void()> listener) {
  MutexLock lock(mutex_);
  listener_ = std::move(listener);
}

}  // namespace lockstep::launcher
