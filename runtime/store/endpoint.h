// SPDX-License-Identifier: Apache-2.0
// An Endpoint has the address of a lockstep store server, and the secret, the run and the role with which a client
// connects to the server.
#pragma once

#include <optional>
#include <string>

#include "runtime/net/address.h"
#include "runtime/store/secret.h"

namespace lockstep::store {

struct Endpoint {
  net::HostPort address = {};
  // The secret of the run. A client with a secret refuses a server that doesn't ask for the secret, because that server
  // is not the run's server. If the server asks for the secret and the client has no secret, the client throws an error
  // that says where to set the secret.
  std::optional<Secret> secret = {};
  // The id of the run, and this client's role in the run, such as "rank 3", "launcher" or "doctor". The run's id and
  // the role are part of the client's proof (auth.h), and appear in the server's log. A server whose run has another id
  // refuses the client.
  std::string run_id = {};
  std::string role = {};
};

}  // namespace lockstep::store
