// SPDX-License-Identifier: Apache-2.0
// A group of one rank, without a launcher.
#pragma once

#include <chrono>
#include <memory>

#include "runtime/comm/single.h"
#include "runtime/store/hash_store.h"

namespace lockstep::testing {

inline std::shared_ptr<ProcessGroup> single_group() {
  GroupContext context;
  context.identity.rank = 0;
  context.identity.world_size = 1;
  context.roster.resize(1);
  context.store = std::make_shared<store::HashStore>();
  context.timeout = std::chrono::seconds(20);
  return single_backend().create(context, Deadline::after(context.timeout));
}

}  // namespace lockstep::testing
