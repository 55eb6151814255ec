// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/tee.h"

namespace lockstep::launcher {

std::optional<Tee> Tee::parse(std::string_view text) {
  if (text.size() != 1 || text.front() < '0' || text.front() > '3') return std::nullopt;
  const int streams = text.front() - '0';
  return Tee{.out = (streams & 1) != 0, .err = (streams & 2) != 0};
}

}  // namespace lockstep::launcher
