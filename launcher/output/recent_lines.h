// SPDX-License-Identifier: Apache-2.0
// The last lines of a job's output, for who asks for them from another terminal.
//
// One writer that is never delayed; readers with a position each, from which they read on. A reader that is more than
// kMostBytes behind is told how much it has missed. Threads: any.
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
  // That are kept at least, of what was put; twice as much at most.
  static constexpr std::size_t kMostBytes = 1 << 20;
  // In bytes since the start.
  using Position = std::uint64_t;

  // `lines`: whole ones, each with its end.
  void put(std::string_view lines) EXCLUDES(mutex_);

  struct Part {
    std::string text = {};     // whole lines; empty: nothing is new
    std::uint64_t missed = 0;  // bytes before it that are not kept any more
    Position next = 0;         // where to read on
  };
  // What follows `from`: at most `most` bytes, but at least one line.
  Part after(Position from, std::size_t most = 64 * 1024) const EXCLUDES(mutex_);
  // Where the last `lines` lines begin, or what is kept of them.
  Position last(std::size_t lines) const EXCLUDES(mutex_);

  // `listener` is called after each put() by its thread; it must not block, nor call this object. None: {}.
  void set_listener(std::function<void()> listener) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::string kept_ GUARDED_BY(mutex_);    // begins with a line
  Position first_ GUARDED_BY(mutex_) = 0;  // of kept_
  std::function<void()> listener_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::launcher
