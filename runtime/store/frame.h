// SPDX-License-Identifier: Apache-2.0
// A frame: the answer to an operation of lockstep's own, or a message that a client gets without asking.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/protocol.h"

namespace lockstep::store {

// A connection of a store server.
using SessionId = std::uint64_t;

struct Frame {
  std::uint8_t status = proto::kOk;  // a status of proto/protocol.h
  std::vector<std::string> list = {};
};

}  // namespace lockstep::store
