// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/slow_rank.h"

namespace lockstep::launcher {

std::string SlowRank::look(const std::optional<Straggler>& straggler, Time now) {
  if (!straggler) return {};
  if (said_) {
    const bool is_same = said_->rank == straggler->rank && said_->cause == straggler->cause;
    if (now - said_at_ < (is_same ? kAgain : kPause)) return {};
  }
  said_ = straggler;
  said_at_ = now;
  return describe(*straggler);
}

}  // namespace lockstep::launcher
