// SPDX-License-Identifier: Apache-2.0
// How a rank connects to another one's port and proves itself there (greeting.h), in steps that never block.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "runtime/comm/tcp/greeting.h"
#include "runtime/net/address.h"

namespace lockstep::tcp {

// Where a rank listens, and the ticket that it has drawn.
struct ListeningPlace {
  std::string ticket;
  net::HostPort address;
};

class ConnectAttempt {
 public:
  // From this rank to rank `peer`. `own` outlives it. `limit`: until the peer's host has to be in reach.
  ConnectAttempt(const OwnEnd& own, int peer, ListeningPlace place, const Deadline& limit)
      : own_(own), peer_(peer), place_(std::move(place)), limit_(limit) {}
  ~ConnectAttempt();
  ConnectAttempt(const ConnectAttempt&) = delete;
  ConnectAttempt& operator=(const ConnectAttempt&) = delete;

  int peer() const { return peer_; }
  int fd() const { return socket_.get(); }
  // Call it first, and every 100 ms. Like serve() it throws SystemError or Timeout if the peer can't be reached, and
  // BackendUnavailable if who listens there does not prove himself, in three tries. A peer that only stands still is
  // waited for.
  void tick();
  // Its descriptor is ready.
  void serve();
  // The connection, once the other end has proved itself.
  std::optional<UniqueFd> take();

 private:
  enum class State { pausing, connecting, awaiting_challenge, awaiting_proof, proven };

  void connect();
  void reached();
  void unreachable(int error);
  // The connection ended, or is not what it should be.
  void try_again(const std::string& problem);

  const OwnEnd& own_;
  const int peer_;
  const ListeningPlace place_;
  const Deadline limit_;
  State state_ = State::pausing;
  UniqueFd socket_;
  Deadline connect_limit_ = Deadline::never();  // of one try to reach a host that does not answer
  std::optional<Deadline> route_limit_;         // until a host that is out of reach is one that there is no way to
  int tries_ = 0;
  store::ChallengeResponse challenge_;
  std::string received_;
};

}  // namespace lockstep::tcp
