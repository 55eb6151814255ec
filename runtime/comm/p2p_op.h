// SPDX-License-Identifier: Apache-2.0
// One side of a message between two ranks, and what all backends say of it.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/device/buffer_view.h"

namespace lockstep::comm {

struct P2pOp {
  bool is_send = false;
  ConstBufferView buffer;
  int peer = 0;
  int tag = 0;
  void* target = nullptr;  // of a recv: the buffer's memory, which it writes
  bool done = false;
  // The number of the message among those from sender to receiver, from 1; a recv has it once it is matched, 0 before.
  std::uint64_t number = 0;

  // "send of 10 x float32 to rank 1 with tag 7".
  std::string describe() const;
};

// The text of a Mismatch: `who` called `recv`, and `sender` sent `count` elements of `dtype`.
std::string describe_mismatch(const P2pOp& recv, const std::string& who, const std::string& sender, std::int64_t count,
                              DType dtype);

}  // namespace lockstep::comm
