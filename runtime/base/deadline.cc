// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/deadline.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

namespace lockstep {

Deadline::Duration Deadline::remaining() const {
  if (is_never()) return Duration::max();
  return std::max(Duration::zero(), limit_ - std::chrono::duration_cast<Duration>(Clock::now() - start_));
}

int Deadline::poll_timeout_ms() const {
  if (is_never()) return -1;
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
  return static_cast<int>(std::min<long long>(milliseconds, INT_MAX));
}

std::string Deadline::progress() const {
  const double spent = std::chrono::duration<double>(elapsed()).count();
  if (is_never()) return fmt::format("elapsed {:.3g} s, no limit", spent);
  return fmt::format("elapsed {:.3g} s of {:.3g} s", spent, std::chrono::duration<double>(limit_).count());
}

}  // namespace lockstep
