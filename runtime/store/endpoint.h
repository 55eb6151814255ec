// SPDX-License-Identifier: Apache-2.0
// Address of a lockstep store server, and what a client must know to be let in.
#pragma once

#include <optional>
#include <string>

#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

struct Endpoint {
  net::HostPort address = {};
  // Secret of the run. With one, a server that doesn't ask for it is refused too: it is not the
  // server that was meant. Without one, a server that asks is an error that says where the secret belongs.
  std::optional<Secret> secret = {};
  // Which run this is, and who we are in it ("rank 3", "launcher", "doctor"). Both are part of the proof, and the
  // server's log names them. A server of another run refuses us.
  std::string run_id = {};
  std::string role = {};
};

}  // namespace lockstep::store
