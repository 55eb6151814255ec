// SPDX-License-Identifier: Apache-2.0
// TcpConnection is one connection to a store server: requests go out, and replies come in. Only one thread at a time
// uses a connection.
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

// Expect says what the caller knows of a server that has not answered yet.
enum class Expect {
  may_come,  // the server may start later: a refusal means "not yet"
  is_there,  // the server has answered this process before: a refusal means that the server has ended or is ending
};

// Stop has descriptors whose readability shortens the waits on a connection.
struct Stop {
  // A descriptor that becomes readable, for good, when no call may wait long any more. -1 means no descriptor.
  int fd = -1;
  // The time in which an answer may still arrive after `fd` has become readable.
  std::chrono::nanoseconds grace{};
  // A descriptor like `fd`, with `last_grace` as its time, for a store that is known not to answer.
  int give_up_fd = -1;
  std::chrono::nanoseconds last_grace{};
};

class TcpConnection {
 public:
  // Connects to a lockstep server and greets the server (auth.h). open() tries again until the deadline, also if the
  // server closes during the greeting, because a full listen queue shows only then. Throws Timeout, which says what was
  // tried and what happened. Throws StoreError at once if the server or the client refuses, or if nobody listens where
  // a server `is_there`.
  static TcpConnection open(const Endpoint& endpoint, const Deadline& deadline, Expect expect = Expect::may_come);
  // Works like open(), with a single try, for a server that is known to listen.
  static TcpConnection open_once(const Endpoint& endpoint, const Deadline& deadline, const Stop& stop = {});
  // Works like open(), with another greeting. `greet` gets the connection and the number of the try, from 1. `or_what`
  // ends the Timeout's question about the program that listens at `address`.
  using Greet = std::function<void(TcpConnection& connection, int attempt)>;
  static TcpConnection open_with(const net::HostPort& address, const Deadline& deadline, Expect expect,
                                 const Greet& greet, std::string_view or_what);
  // Makes `stop` shorten each wait from now on. The descriptors of `stop` must outlive this object.
  void stop_by(const Stop& stop) { stop_ = stop; }

  // Sends bytes of requests. Throws net::ConnectionClosed, Timeout, SystemError.
  void send(std::string_view bytes, const Deadline& deadline);
  // Receives the reply to the oldest unanswered request, which was `op` with `keys` keys. The returned views are valid
  // until the next receive(). Throws the exceptions of send(), and CorruptData if the bytes are not a reply.
  const proto::Contents& receive(proto::Op op, std::size_t keys, const Deadline& deadline);
  // Waits until there is a reply to receive. Returns false if the stop came first. Throws Timeout.
  bool await_reply(const Deadline& deadline);
  // Gives the connection, with the bytes that were received and not returned, to a caller that goes on by itself.
  net::Connection release() && { return std::move(connection_); }
  // Returns the numeric address of the server.
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
