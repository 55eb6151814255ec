// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client/tcp_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/auth.h"

namespace lockstep::store {
namespace {

using proto::Op;

// The longest time for one greeting. A server that has accepted the connection answers the greeting at once. A server
// whose listen queue is full does not answer, so the client stops waiting and connects again.
constexpr auto kGreetingLimit = std::chrono::seconds(10);

UniqueFd connect(const net::HostPort& address, const Deadline& deadline, Expect expect) {
  if (expect == Expect::may_come) return net::tcp_connect(address, deadline);
  try {
    return net::tcp_connect(address, deadline, net::Refused::for_good);
  } catch (const SystemError& error) {
    if (error.error_number() != ECONNREFUSED) throw;
    throw StoreError(
        fmt::format("nobody listens any more at the store's address {} ({}): the process that hosts the store (the "
                    "launcher or rank 0) has ended or is ending: look at the output of that process",
                    address.to_string(), errno_text(error.error_number())));
  }
}

}  // namespace

TcpConnection TcpConnection::open_once(const Endpoint& endpoint, const Deadline& deadline, const Stop& stop) {
  TcpConnection connection(net::tcp_connect_once(endpoint.address, deadline));
  connection.stop_by(stop);
  connection.greet(endpoint, deadline);
  return connection;
}

TcpConnection TcpConnection::open(const Endpoint& endpoint, const Deadline& deadline, Expect expect) {
  const auto greet = [&](TcpConnection& connection, int) {
    connection.greet(endpoint, deadline.sooner(kGreetingLimit));
  };
  return open_with(endpoint.address, deadline, expect, greet, " (or a store of PyTorch)");
}

TcpConnection TcpConnection::open_with(const net::HostPort& address, const Deadline& deadline, Expect expect,
                                       const Greet& greet, std::string_view or_what) {
  net::Backoff backoff;
  for (int attempt = 1;; ++attempt) {
    TcpConnection connection(connect(address, deadline, expect));
    std::string outcome;
    try {
      greet(connection, attempt);
      return connection;
    } catch (const net::ConnectionClosed& error) {
      outcome = error.what();
    } catch (const Timeout& error) {
      outcome = error.what();
    } catch (const CorruptData& error) {
      throw StoreError(
          fmt::format("the process at {} answered the greeting with something that no store server sends ({}); see "
                      "whether another program uses this port, and correct the address",
                      address.to_string(), error.what()));
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("the process at {} accepts connections but did not answer the greeting of a store client, {}, {} "
                      "attempts; last: {}; see whether another program{} uses this port, and correct the address",
                      address.to_string(), deadline.progress(), attempt, outcome, or_what));
    }
  }
}

void TcpConnection::greet(const Endpoint& endpoint, const Deadline& deadline) {
  ClientGreeting greeting(endpoint.secret ? &*endpoint.secret : nullptr, endpoint.run_id, endpoint.role,
                          endpoint.address.to_string());
  send(greeting.hello(), deadline);
  const std::string proof = greeting.prove(receive(Op::hello, 0, deadline));
  if (proof.empty()) return;
  send(proof, deadline);
  greeting.check(receive(Op::prove, 0, deadline));
}

// Returns true once the socket is ready. Returns false if `at_stop` is AtStop::end and Stop::fd becomes readable before
// the socket is ready.
bool TcpConnection::wait_for(short events, const Deadline& deadline, AtStop at_stop) const {
  Deadline limit = deadline;
  Stop stop = stop_;  // poll() ignores descriptors of -1
  for (;;) {
    pollfd entries[] = {{.fd = connection_.fd(), .events = events, .revents = 0},
                        {.fd = stop.fd, .events = POLLIN, .revents = 0},
                        {.fd = stop.give_up_fd, .events = POLLIN, .revents = 0}};
    const int ready = ::poll(entries, at_stop == AtStop::end ? 2 : 3, limit.poll_timeout_ms());
    if (ready < 0 && errno != EINTR) throw SystemError("poll of a socket", errno);
    if (ready > 0 && entries[0].revents != 0) return true;
    if (ready == 0 && limit.expired()) {
      throw Timeout(fmt::format("{} {}: timed out, {}", events == POLLIN ? "receive from" : "send to",
                                net::describe_peer(connection_.fd()), deadline.progress()));
    }
    if (ready <= 0) continue;
    if (at_stop == AtStop::end) return false;
    // A descriptor of `stop` stays readable, so the loop shortens `limit` once, and then stops polling the descriptor.
    if (entries[1].revents != 0) {
      limit = limit.sooner(stop.grace);
      stop.fd = -1;
    }
    if (entries[2].revents != 0) {
      limit = limit.sooner(stop.last_grace);
      stop.give_up_fd = -1;
    }
  }
}

void TcpConnection::send(std::string_view bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const auto sent = net::try_send(connection_.fd(), bytes);
    if (!sent) net::throw_failed("send to", connection_.fd(), errno, 0, bytes.size());
    if (*sent == 0) wait_for(POLLOUT, deadline);
    bytes.remove_prefix(*sent);
  }
}

bool TcpConnection::await_reply(const Deadline& deadline) {
  return !connection_.input().empty() || wait_for(POLLIN, deadline, AtStop::end);
}

const proto::Contents& TcpConnection::receive(Op op, std::size_t keys, const Deadline& deadline) {
  if (connection_.input().empty()) receive_more(deadline);
  proto::ReplyReader reader(op, keys);
  for (;;) {
    const proto::Status status = reader.read(connection_.input());
    if (status == proto::Status::ok) {
      // contents_ has views of the reply's bytes, which stay in the buffer of connection_ until the next receive().
      contents_ = reader.contents();
      connection_.consume(reader.size());
      return contents_;
    }
    if (status == proto::Status::malformed) throw CorruptData(reader.reason());
    receive_more(deadline);
  }
}

void TcpConnection::receive_more(const Deadline& deadline) {
  // Wait before the first recv(), because the answer has usually not arrived yet.
  wait_for(POLLIN, deadline);
  connection_.receive(deadline);
}

net::HostPort TcpConnection::peer() const { return net::peer_address(connection_.fd()); }

}  // namespace lockstep::store
