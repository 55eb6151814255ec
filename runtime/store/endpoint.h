// SPDX-License-Identifier: Apache-2.0
// An Endpoint is the address of a lockstep store server, with the secret and the names that admit a client.
#pragma once

#include <optional>
#include <string>

#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

struct Endpoint {
  net::HostPort address = {};
  // The secret of the run. A client with a secret refuses a server that doesn't ask for the secret, because that server
  // is not the run's server. If a client has no secret, a server that asks for the secret is an error, which says where
  // the secret belongs.
  std::optional<Secret> secret = {};
  // The run, and this client's role in the run ("rank 3", "launcher", "doctor"). Run and role are part of the proof,
  // and appear in the server's log. A server of another run refuses the client.
  std::string run_id = {};
  std::string role = {};
};

}  // namespace lockstep::store
