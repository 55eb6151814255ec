// SPDX-License-Identifier: Apache-2.0
// A Frame is a message from a store server to a client: the answer to a request in lockstep's dialect, or a message
// that the client did not ask for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/protocol.h"

namespace lockstep::store {

// A SessionId identifies one client's connection to a store server.
using SessionId = std::uint64_t;

struct Frame {
  std::uint8_t status = proto::kOk;  // a status of proto/protocol.h
  std::vector<std::string> list = {};
};

}  // namespace lockstep::store
