// SPDX-License-Identifier: Apache-2.0
// Ranks for tests of meet(): identities and places.
#pragma once

#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/support/child.h"
#include "tests/support/free_port.h"

namespace lockstep::rendezvous {

inline Identity rank_of(int rank, int world_size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.source = "test";
  return identity;
}

using lockstep::testing::Child;
using lockstep::testing::free_port;
using lockstep::testing::Line;

inline MeetingPlan at(const net::HostPort& address) {
  return {
      .method = MeetingPlan::RendezvousMethod::address, .address = address, .told_by = "MASTER_ADDR and MASTER_PORT"};
}

}  // namespace lockstep::rendezvous
