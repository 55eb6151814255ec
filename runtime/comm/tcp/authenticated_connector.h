// SPDX-License-Identifier: Apache-2.0
// TCP connections of a rank with others, on which both ends have proved that they are of the job (greeting.h).
//
// Each rank listens at a port of its own for as long as there is a rank that it is not connected with; it tells through
// the group's store where, with a ticket drawn by chance. At the start it connects with the ranks that it is asked for,
// later with each that it has something for.
//
// If two ranks connect to each other at once, the higher one's connection stays: the higher one keeps the lower one's
// waiting, unproved, until its own is there or has failed, and the lower one gives its own up once the higher one has
// proved itself. So no rank keeps a connection that the other one has thrown away.
//
// A caller that does not prove itself is turned away and named in the log (handshake_acceptor.h); the others don't wait
// for it. A listener that does not is tried three times (connect_attempt.h).
//
// Threads: one.
#pragma once

#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "runtime/base/unique_fd.h"
#include "runtime/comm/tcp/connect_attempt.h"
#include "runtime/comm/tcp/handshake_acceptor.h"
#include "runtime/store/secret.h"

namespace lockstep::tcp {

// Against a rank that can't be reached.
inline constexpr std::string_view kRemedy =
    "see that the hosts reach each other there, or name another interface in GLOO_SOCKET_IFNAME";

struct ConnectOptions {
  std::string address;                               // of this host's, numeric: where to listen
  std::shared_ptr<const store::Secret> secret = {};  // the job's; null if it has none
  std::function<void()> check = {};                  // called every 200 ms of open(); ends it by throwing
};

class AuthenticatedConnector {
 public:
  // The outcome of connecting to `rank`.
  struct Outcome {
    int rank = -1;
    UniqueFd socket = {};             // non-blocking, without Nagle's delay
    std::exception_ptr problem = {};  // SystemError, Timeout: it can't be reached. BackendUnavailable: an impostor
  };

  // `roster` outlives it. Throws as net::tcp_listen().
  AuthenticatedConnector(const rendezvous::Roster& roster, int rank, ConnectOptions options);
  ~AuthenticatedConnector();

  // Tells all others where this rank listens, and connects it with `ranks`, each of which names it too. Collective;
  // blocks. By rank, of these and of others that have come meanwhile. Throws Timeout with the ranks that have not come,
  // BackendUnavailable (a listener that can't prove itself, with its address), what the store, `check` and net throw.
  std::vector<UniqueFd> open(store::Store& store, const std::vector<int>& ranks, const Deadline& deadline);

  // After that, none of which blocks:
  // Has serve() tell what becomes of a connection with `rank`. Nothing new where it has been asked for.
  void ask(int rank);
  // Readable when serve() has something to do.
  int fd() const { return epoll_.get(); }
  std::vector<Outcome> serve();

 private:
  void begin(int rank, const Deadline& limit);
  // Takes a step of the attempt, which may fail or complete it.
  void advance(std::list<ConnectAttempt>::iterator attempt, void (ConnectAttempt::*step)());
  void answer_callers();
  void connected(int rank, UniqueFd socket);
  void set_timer();
  bool has(int rank) const { return is_connected_[static_cast<std::size_t>(rank)]; }
  std::list<ConnectAttempt>::iterator find_attempt(int rank);
  [[noreturn]] void throw_missing(const std::vector<int>& missing, const Deadline& deadline) const;

  const ConnectOptions options_;
  const UniqueFd epoll_;
  const OwnEnd own_;
  const UniqueFd timer_;
  bool ticks_ = false;
  std::optional<HandshakeAcceptor> acceptor_;  // until all are connected
  std::vector<ListeningPlace> places_;
  std::vector<bool> is_connected_;  // by rank: has been
  std::list<ConnectAttempt> attempts_;
  std::vector<Outcome> outcomes_;  // that serve() has still to tell
};

}  // namespace lockstep::tcp
