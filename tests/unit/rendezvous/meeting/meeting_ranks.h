// SPDX-License-Identifier: Apache-2.0
// Ranks for tests of meet(): identities and places.
#pragma once

#include <optional>
#include <string>

#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/child.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::rendezvous {

using lockstep::testing::Child;
using lockstep::testing::free_port;
using lockstep::testing::Line;
using RendezvousMethod = MeetingPlan::RendezvousMethod;

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

inline Identity rank_of(int rank, int world_size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.source = "test";
  return identity;
}

inline MeetingPlan at(const net::HostPort& address, RendezvousMethod method = RendezvousMethod::address) {
  return {.method = method, .address = address, .told_by = "MASTER_ADDR and MASTER_PORT"};
}

// A place of this test's own.
struct Place {
  explicit Place(RendezvousMethod method, const std::optional<store::Secret>& secret = {})
      : plan{.method = method, .path = folder / "job", .told_by = "test", .secret = secret} {
    plan.socket = "lockstep " + folder.filename().string();
    if (method == RendezvousMethod::address) plan.address = {"localhost", free_port()};
    if (method == RendezvousMethod::agent_store) plan.address = server.emplace().address();
    if (method == RendezvousMethod::launcher_store) {
      plan.address = server.emplace(store::TcpStoreServerOptions{.secret = secret}).address();
    }
  }

  const lockstep::testing::TemporaryFolder folder;
  std::optional<store::TcpStoreServer> server;  // of the launcher or its agent
  MeetingPlan plan;
};

inline std::string name_of(RendezvousMethod method) {
  switch (method) {
    case RendezvousMethod::address: return "address";
    case RendezvousMethod::local_socket: return "socket";
    case RendezvousMethod::agent_store: return "agent";
    case RendezvousMethod::launcher_store: return "launcher";
    default: return "file";
  }
}

}  // namespace lockstep::rendezvous
