// SPDX-License-Identifier: Apache-2.0
// A Frame is the answer to an operation of lockstep's dialect, or a message that a client gets without asking.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/protocol.h"

namespace lockstep::store {

// A SessionId names a connection of a store server.
using SessionId = std::uint64_t;

struct Frame {
  std::uint8_t status = proto::kOk;  // a status of proto/protocol.h
  std::vector<std::string> list = {};
};

}  // namespace lockstep::store
