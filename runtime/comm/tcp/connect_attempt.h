// SPDX-License-Identifier: Apache-2.0
// How a rank connects to another one's port and proves itself there (greeting.h), in steps that never block.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"
#include "runtime/store/auth.h"

namespace lockstep::tcp {

// Where a rank listens, and the ticket that it has drawn.
struct ListeningPlace {
  std::string ticket;
  net::HostPort address;
};

class ConnectAttempt {
 public:
  // Names for messages.
  struct Names {
    std::string own;  // "rank 2 (host node7, pid 4711)"
    std::string peer;
  };

  // From rank `own` to rank `peer`. `secret` may be null, and outlives it. `limit`: until the peer's host has to be in
  // reach. Its descriptor is watched by `epoll` under its number.
  ConnectAttempt(int own, int peer, Names names, ListeningPlace place, const store::Secret* secret,
                 const Deadline& limit, int epoll);
  ~ConnectAttempt();
  ConnectAttempt(const ConnectAttempt&) = delete;
  ConnectAttempt& operator=(const ConnectAttempt&) = delete;

  int peer() const { return peer_; }
  int fd() const { return socket_.get(); }
  // Its descriptor is ready. Like begin() and tick() it throws SystemError or Timeout if the peer can't be reached, and
  // BackendUnavailable if who listens there does not prove himself, in three tries. A peer that only stands still is
  // waited for.
  void serve();
  // Called first, once.
  void begin();
  // Call it every 100 ms.
  void tick();
  // The connection, once the other end has proved itself.
  std::optional<UniqueFd> take();

 private:
  enum class State { pausing, connecting, awaiting_challenge, awaiting_proof, proven };

  void connect();
  void reached();
  void unreachable(int error);
  // The connection ended, or is not what it should be.
  void try_again(const std::string& problem);
  void watch(int operation, std::uint32_t events) const;

  const int own_;
  const int peer_;
  const Names names_;
  const ListeningPlace place_;
  const store::Secret* const secret_;
  const Deadline limit_;
  const int epoll_;
  State state_ = State::pausing;
  UniqueFd socket_;
  Deadline connect_limit_ = Deadline::never();  // of one try to reach a host that does not answer
  std::optional<Deadline> route_limit_;         // until a host that is out of reach is one that there is no way to
  int tries_ = 0;
  store::ChallengeResponse challenge_;
  std::string received_;
};

}  // namespace lockstep::tcp
