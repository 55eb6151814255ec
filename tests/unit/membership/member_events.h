// SPDX-License-Identifier: Apache-2.0
// Records the events that a member's link reports, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/membership/member_link.h"

namespace lockstep::membership {

inline Deadline patience() { return Deadline::after(std::chrono::seconds(40)); }

inline MemberInfo member(int rank, int world_size = 3) {
  return {.rank = rank, .world_size = world_size, .process = ProcessInfo::of_this_process()};
}

// Events and words, each in order.
class Events {
 public:
  MemberCalls calls(std::int64_t sequence = 0) {
    return {.on_event = [this](const MemberEvent& event) { add(event); },
            .position = [sequence] { return MemberPosition{.sequence = sequence}; },
            .on_word =
                [this](const std::string& group, const std::string& word) {
                  MutexLock lock(mutex_);
                  words_.push_back(group + ": " + word);
                  changed_.notify_all();
                }};
  }
  void add(const MemberEvent& event) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
  }
  // The first event of this kind; with rank -1 if none came.
  MemberEvent await(MemberEvent::Kind kind) EXCLUDES(mutex_) {
    const Deadline deadline = patience();
    MutexLock lock(mutex_);
    while (true) {
      const auto found =
          std::find_if(events_.begin(), events_.end(), [&](const MemberEvent& event) { return event.kind == kind; });
      if (found != events_.end()) return *found;
      if (!changed_.wait_until(mutex_, deadline) && deadline.expired()) {
        ADD_FAILURE() << "no such event, " << events_.size() << " others";
        return {.kind = kind};
      }
    }
  }
  std::vector<std::string> await_words(std::size_t number) EXCLUDES(mutex_) {
    const Deadline deadline = patience();
    MutexLock lock(mutex_);
    while (words_.size() < number && changed_.wait_until(mutex_, deadline)) {
    }
    EXPECT_EQ(words_.size(), number);
    return words_;
  }
  std::vector<MemberEvent> all() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<MemberEvent> events_ GUARDED_BY(mutex_);
  std::vector<std::string> words_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::membership
