// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/backoff.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "lockstep/base/random.h"

namespace lockstep::net {
namespace {

Generator& jitter() {
  thread_local Generator generator(
      static_cast<std::uint64_t>(Deadline::Clock::now().time_since_epoch().count()),
      (static_cast<std::uint64_t>(::getpid()) << 32) ^ std::hash<std::thread::id>()(std::this_thread::get_id()));
  return generator;
}

}  // namespace

bool Backoff::pause(const Deadline& deadline) {
  const auto left = deadline.remaining();
  if (left <= Duration::zero()) return false;
  const auto pause = next_ / 2 + Duration(jitter().below(static_cast<std::uint64_t>(next_.count() / 2) + 1));
  std::this_thread::sleep_for(std::min(pause, left));
  next_ = std::min(2 * next_, most_);
  return true;
}

}  // namespace lockstep::net
