// SPDX-License-Identifier: Apache-2.0
// The answer to an operation of lockstep's own, and what a client is sent unasked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/protocol.h"

namespace lockstep::store {

// A connection of a store server.
using SessionId = std::uint64_t;

struct Frame {
  std::uint8_t status = proto::kOk;  // of proto/protocol.h
  std::vector<std::string> list = {};
};

}  // namespace lockstep::store
