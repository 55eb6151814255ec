// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/at_fatal_error.h"

#include <utility>

#include "runtime/base/mutex.h"

namespace lockstep {
namespace {

Mutex list_mutex;

}  // namespace

std::list<AtFatalError::Entry>& AtFatalError::entries() {
  static std::list<Entry> the_entries;
  return the_entries;
}

AtFatalError::AtFatalError(std::function<void()> action) {
  const MutexLock lock(list_mutex);
  entry_ = entries().insert(entries().end(), {std::this_thread::get_id(), std::move(action)});
}

AtFatalError::~AtFatalError() {
  const MutexLock lock(list_mutex);
  entries().erase(entry_);
}

void run_at_fatal_error() {
  for (;;) {
    std::function<void()> action;
    {
      const MutexLock lock(list_mutex);
      auto& entries = AtFatalError::entries();
      for (auto entry = entries.rbegin(); entry != entries.rend() && !action; ++entry) {
        if (entry->thread == std::this_thread::get_id()) action = std::exchange(entry->action, nullptr);
      }
    }
    if (!action) return;
    action();
  }
}

}  // namespace lockstep
