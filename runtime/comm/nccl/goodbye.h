// SPDX-License-Identifier: Apache-2.0
// A rank's last words when it leaves a group in order.
#pragma once

#include <cstdint>

namespace lockstep::nccl {

// Messages that one rank has started with another.
struct MessageCounts {
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

struct Goodbye {
  std::uint64_t last = 0;  // collective
  MessageCounts messages;  // with the rank that reads it
};

}  // namespace lockstep::nccl
