// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/gather_values.h"

#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep {

std::vector<checkpoint::SnapshotValues> gather_values(ProcessGroup& group, const checkpoint::SnapshotValues& own) {
  std::vector<checkpoint::SnapshotValues> all;
  for (const std::string& text : all_gather_text(group, checkpoint::to_text(own))) {
    all.push_back(checkpoint::values_from_text(text));
  }
  return all;
}

}  // namespace lockstep
