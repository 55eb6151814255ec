// SPDX-License-Identifier: Apache-2.0
// A backend that is a plug-in, and a GPU, may be on some hosts and not on others: so all ranks choose together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/comm/backend.h"

namespace lockstep {

// One of those that a rank would take, and why it can't: empty if it can.
struct Reason {
  std::string name;
  std::string why_not;
};

// The same with every rank's reasons in it: empty if all ranks can take it. Each rank puts its own into the context's
// store, the last to come reads them all and leaves one verdict; who can take none of them waits for nobody. Throws
// Timeout, which names the ranks that did not come, and CorruptData.
// `what`: "backend" or "device", one agreement of each in a start.
std::vector<Reason> agree_on_reasons(std::string_view what, std::vector<Reason> own, const GroupContext& context,
                                     const Deadline& deadline);

}  // namespace lockstep
