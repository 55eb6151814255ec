// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/p2p_op.h"

#include <fmt/format.h>

namespace lockstep::comm {

std::string P2pOp::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag {}", is_send ? "send" : "recv", buffer.count,
                     name_of(buffer.dtype), is_send ? "to" : "from", peer, tag);
}

std::string describe_mismatch(const P2pOp& recv, const std::string& who, const std::string& sender, std::int64_t count,
                              DType dtype) {
  return fmt::format("{} called {}, but {} sent {} x {}; both sides must give one size and type", who, recv.describe(),
                     sender, count, name_of(dtype));
}

}  // namespace lockstep::comm
