// SPDX-License-Identifier: Apache-2.0
// TcpConnection is a client's connection to a store server, on which the client sends requests and receives replies.
// Only one thread at a time may use a TcpConnection.
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

// Expect says whether the caller knows that a server already listens at the address.
enum class Expect {
  may_come,  // the server may start later: a refusal means "not yet"
  is_there,  // the server has answered this process before: a refusal means that the server has ended or is ending
};

// Stop has file descriptors that shorten the waits on a connection when the descriptors become readable.
struct Stop {
  // A descriptor that becomes readable, and stays readable, once calls must no longer wait, or -1 for no descriptor.
  int fd = -1;
  // The longest time that a call waits for an answer after `fd` has become readable.
  std::chrono::nanoseconds grace{};
  // A descriptor that becomes readable, and stays readable, once the server is known not to answer, or -1 for no
  // descriptor. After `give_up_fd` has become readable, a call waits at most `last_grace` for an answer.
  int give_up_fd = -1;
  std::chrono::nanoseconds last_grace{};
};

class TcpConnection {
 public:
  // Connects to a lockstep server and greets the server (auth.h). If connecting or the greeting fails, tries again
  // until the deadline. If the server's listen queue is full, connecting may succeed, and then the greeting fails.
  // Throws Timeout at the deadline; the message says what was tried and what failed. Throws StoreError at once if the
  // server refuses the client, if the client refuses the server, or if `expect` is is_there and nobody listens at the
  // address.
  static TcpConnection open(const Endpoint& endpoint, const Deadline& deadline, Expect expect = Expect::may_come);
  // Works like open(), but tries to connect only once, because the server is known to listen.
  static TcpConnection open_once(const Endpoint& endpoint, const Deadline& deadline, const Stop& stop = {});
  // Works like open(), with another greeting. `greet` does the greeting on `connection`; `attempt` is 1 for the first
  // attempt to connect. `or_what` is a text for the Timeout's message that guesses which program listens at `address`.
  using Greet = std::function<void(TcpConnection& connection, int attempt)>;
  static TcpConnection open_with(const net::HostPort& address, const Deadline& deadline, Expect expect,
                                 const Greet& greet, std::string_view or_what);
  // Makes `stop` shorten every later wait of this connection. The descriptors of `stop` must outlive this object.
  void stop_by(const Stop& stop) { stop_ = stop; }

  // Sends bytes of requests. Throws net::ConnectionClosed, Timeout, SystemError.
  void send(std::string_view bytes, const Deadline& deadline);
  // Receives the reply to the oldest unanswered request, whose operation was `op` and which had `keys` keys. The views
  // in the returned Contents are valid until the next receive(). Throws the exceptions of send(), and CorruptData if
  // the bytes are not a reply.
  const proto::Contents& receive(proto::Op op, std::size_t keys, const Deadline& deadline);
  // Waits until bytes of a reply can be received. Returns false if Stop::fd became readable first. Throws Timeout.
  bool await_reply(const Deadline& deadline);
  // Returns the underlying net::Connection, which also has the received bytes that receive() has not used. After
  // release(), the caller itself sends and receives on the connection.
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
