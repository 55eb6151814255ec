// SPDX-License-Identifier: Apache-2.0
// Exchange of records (base/record.h) between the ranks of a group.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/base/record.h"

namespace lockstep {

// Every rank's list of records, in rank order; collective. Throws CorruptData if a rank's text isn't such a list: "WHAT
// of rank 1 (...): 12 bytes that can't be read; ...".
template <typename Record, typename EachField>
std::vector<std::vector<Record>> all_gather_records(ProcessGroup& group, const std::vector<Record>& own,
                                                    EachField each_field, std::string_view what) {
  std::vector<std::vector<Record>> all;
  for (const std::string& text : all_gather_text(group, write_records(own, each_field))) {
    const std::string whose = fmt::format("{} of {}", what, group.roster()[all.size()].describe());
    all.push_back(require_records<Record>(text, each_field, whose));
  }
  return all;
}

}  // namespace lockstep
