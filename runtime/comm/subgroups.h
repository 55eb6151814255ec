// SPDX-License-Identifier: Apache-2.0
// A group within a group, as its ranks have agreed on it (ProcessGroup::split, new_group).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
struct GroupContext;

// Makes a group of some ranks of `parent`, for which `own` has identity, roster, store and timeout. Collective over its
// ranks. Throws what Backend::create throws.
using GroupMaker =
    std::function<std::shared_ptr<ProcessGroup>(const GroupContext& parent, GroupContext own, const Deadline&)>;

namespace comm {

struct Subgroup {
  std::vector<int> ranks = {};  // of the group that it is a part of; this rank is one of them
  int rank = 0;                 // this rank's, in the new group
  std::string name = {};
  std::string store_prefix = {};  // of its own within the store of the group that it is a part of
  std::chrono::nanoseconds timeout{};
};

}  // namespace comm
}  // namespace lockstep
