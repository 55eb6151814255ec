// SPDX-License-Identifier: Apache-2.0
// The last lines of a job's output, for clients in other terminals.
//
// One writer, which never waits; each reader has a position from which it continues. A reader that is more than
// kMostBytes behind is told how many bytes it has missed. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/base/mutex.h"

namespace lockstep::launcher {

class RecentLines {
 public:
  // Bytes that are kept at least; at most twice as many are.
  static constexpr std::size_t kMostBytes = 1 << 20;
  // Bytes since the start.
  using Position = std::uint64_t;

  // `lines` are whole lines, each with its end.
  void put(std::string_view lines) EXCLUDES(mutex_);

  struct Part {
    std::string text = {};     // whole lines; empty: there are no new ones
    std::uint64_t missed = 0;  // bytes before it that are not kept any more
    Position next = 0;         // position of the next call
  };
  // Returns the lines behind `from`: at most `most` bytes, but at least one line.
  Part after(Position from, std::size_t most = 64 * 1024) const EXCLUDES(mutex_);
  // Returns the beginning of the last `lines` lines, or of the oldest that is kept.
  Position last(std::size_t lines) const EXCLUDES(mutex_);

  // `listener` is called after each put() by its thread; it must not block or call this object. {}: none.
  void set_listener(std::function<void()> listener) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::string kept_ GUARDED_BY(mutex_);    // begins at a line's beginning
  Position first_ GUARDED_BY(mutex_) = 0;  // position of kept_
  std::function<void()> listener_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::launcher
