// SPDX-License-Identifier: Apache-2.0
// One connection to a store server: requests out, replies in. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "lockstep/base/deadline.h"
#include "proto/protocol.h"
#include "proto/reply.h"
#include "proto/request.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"
#include "runtime/net/connection.h"
#include "runtime/store/endpoint.h"

namespace lockstep::store {

// How sure the caller is of a server that has not answered yet.
enum class Expect {
  may_come,  // it may not have started yet: a refusal means later
  is_there,  // it has answered this process before: a refusal means that its process has ended or is about to
};

// Signals that end waiting on a connection early.
struct Stop {
  int fd = -1;  // readable for good once nobody shall wait long; -1: nothing does
  // Time in which an answer may still come then.
  std::chrono::nanoseconds grace{};
  // As `fd` and `grace`, once the store is known not to answer.
  int give_up_fd = -1;
  std::chrono::nanoseconds last_grace{};
};

class TcpConnection {
 public:
  // Connects to a lockstep server and greets it (auth.h), and tries again until the deadline, also when the server
  // closes during the greeting: a full listen queue shows only then. Timeout says what was tried and what came of it;
  // StoreError, at once, why the server refuses us or we it, or that nobody listens where a server `is_there`.
  static TcpConnection open(const Endpoint& endpoint, const Deadline& deadline, Expect expect = Expect::may_come);
  // As open(), without a second try, for a server that is known to be there.
  static TcpConnection open_once(const Endpoint& endpoint, const Deadline& deadline, const Stop& stop = {});
  // As open(), with another greeting: `greet` gets the connection and the number of the try, from 1. `or_what` ends the
  // Timeout's question what else may listen there.
  using Greet = std::function<void(TcpConnection& connection, int attempt)>;
  static TcpConnection open_with(const net::HostPort& address, const Deadline& deadline, Expect expect,
                                 const Greet& greet, std::string_view or_what);
  // From now on each wait has what `stop` leaves it, if its deadline is not sooner. The descriptor must outlive this.
  void stop_by(const Stop& stop) { stop_ = stop; }

  // Sends bytes of requests. Throws net::ConnectionClosed, Timeout, SystemError.
  void send(std::string_view bytes, const Deadline& deadline);
  // Receives the reply to the oldest request that has none yet, which was `op` with `keys` keys. The views are valid
  // until the next call. Throws as send(), and CorruptData if the reply is not one.
  const proto::Contents& receive(proto::Op op, std::size_t keys, const Deadline& deadline);
  // Waits until there is something to receive; false if the stop came first. Throws Timeout.
  bool await_reply(const Deadline& deadline);
  // Gives up the connection, with the bytes received on it and not given out, to a caller that continues by itself.
  net::Connection release() && { return std::move(connection_); }
  // The address that was connected to, numeric.
  net::HostPort peer() const;

 private:
  explicit TcpConnection(UniqueFd fd) : connection_(std::move(fd)) {}
  void greet(const Endpoint& endpoint, const Deadline& deadline);
  void receive_more(const Deadline& deadline);
  enum class AtStop { hurry, end };
  bool wait_for(short events, const Deadline& deadline, AtStop at_stop = AtStop::hurry) const;

  net::Connection connection_;
  Stop stop_;
  proto::Contents contents_;
};

}  // namespace lockstep::store
