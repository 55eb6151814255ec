// SPDX-License-Identifier: Apache-2.0
// The address of a lockstep store server, and what a client needs to be admitted.
#pragma once

#include <optional>
#include <string>

#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

struct Endpoint {
  net::HostPort address = {};
  // The secret of the run. With one, the client also refuses a server that doesn't ask for it, because that is another
  // server. Without one, a server that asks for it is an error, which says where the secret belongs.
  std::optional<Secret> secret = {};
  // The run, and this client's role in it ("rank 3", "launcher", "doctor"). Both are part of the proof, and in the
  // server's log. A server of another run refuses the client.
  std::string run_id = {};
  std::string role = {};
};

}  // namespace lockstep::store
