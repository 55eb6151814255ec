// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/agree.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

void agree_on(ProcessGroup& group, std::string_view what, const std::function<void()>& check) {
  std::string own;
  try {
    check();
  } catch (const Error& error) {
    own = error.what();
  }
  const std::vector<std::string> all = all_gather_text(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    barrier_before_throw(group);
    throw InvalidArgument(fmt::format("{}: on {}: {}", what, group.roster()[rank].describe(), all[rank]));
  }
}

}  // namespace lockstep
