// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client/tcp_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/auth.h"

namespace lockstep::store {
namespace {

using proto::Op;

constexpr std::size_t kFirstBuffer = std::size_t{4} << 10;
// A buffer that has held something large is given back after it.
constexpr std::size_t kKeptBuffer = std::size_t{256} << 10;
// One greeting: a server that has accepted answers it at once, one that hasn't (a full queue) is better asked again.
constexpr auto kGreetingLimit = std::chrono::seconds(10);

UniqueFd connect(const net::HostPort& address, const Deadline& deadline, Expect expect) {
  if (expect == Expect::may_come) return net::tcp_connect(address, deadline);
  try {
    return net::tcp_connect(address, deadline, net::Refused::for_good);
  } catch (const SystemError& error) {
    if (error.error_number() != ECONNREFUSED) throw;
    throw StoreError(
        fmt::format("nobody listens any more at the store's address {} ({}): the process that hosts the store, which "
                    "is the launcher or rank 0, has ended or is about to: look at what it said",
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
  return open_with(endpoint.address, deadline, expect, greet, ", or a store of PyTorch");
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
          fmt::format("{} answered the greeting with what no store server sends ({}); is it another "
                      "program's port?",
                      address.to_string(), error.what()));
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("{} accepts connections but did not answer the greeting of a store client, {}, {} "
                      "attempts; last: {}; is it another program's port{}?",
                      address.to_string(), deadline.progress(), attempt, outcome, or_what));
    }
  }
}

void TcpConnection::greet(const Endpoint& endpoint, const Deadline& deadline) {
  ClientGreeting greeting(endpoint.secret ? &*endpoint.secret : nullptr, endpoint.run_id, endpoint.role);
  send(greeting.hello(), deadline);
  const std::string proof = greeting.prove(receive(Op::hello, 0, deadline));
  if (proof.empty()) return;
  send(proof, deadline);
  greeting.check(receive(Op::prove, 0, deadline));
}

// False if the deadline passed, or what the stop leaves.
bool TcpConnection::wait_for(short events, const Deadline& deadline) const {
  Deadline limit = deadline;
  Stop stop = stop_;  // poll() passes over -1
  for (;;) {
    pollfd entries[] = {{.fd = fd_.get(), .events = events, .revents = 0},
                        {.fd = stop.fd, .events = POLLIN, .revents = 0},
                        {.fd = stop.give_up_fd, .events = POLLIN, .revents = 0}};
    const int ready = ::poll(entries, 3, limit.poll_timeout_ms());
    if (ready < 0 && errno != EINTR) throw SystemError("poll of a socket", errno);
    if (ready > 0 && entries[0].revents != 0) return true;
    if (ready == 0 && limit.expired()) return false;
    if (ready <= 0) continue;
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
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (wait_for(POLLOUT, deadline)) continue;
      throw Timeout(fmt::format("send to {}: timed out, {}", net::describe_peer(fd_.get()), deadline.progress()));
    } else if (errno != EINTR) {
      return net::send_all(fd_.get(), bytes, deadline);  // meets the same error, and says what it is
    }
  }
}

bool TcpConnection::await_reply(const Deadline& deadline) {
  while (begin_ == end_) {
    pollfd entries[] = {{.fd = fd_.get(), .events = POLLIN, .revents = 0},
                        {.fd = stop_.fd, .events = POLLIN, .revents = 0}};
    const int ready = ::poll(entries, 2, deadline.poll_timeout_ms());
    if (ready > 0) return entries[0].revents != 0;
    if (ready < 0 && errno != EINTR) throw SystemError("poll of a socket", errno);
    if (ready == 0 && deadline.expired()) {
      throw Timeout(fmt::format("receive from {}: timed out, {}", net::describe_peer(fd_.get()), deadline.progress()));
    }
  }
  return true;
}

const proto::Contents& TcpConnection::receive(Op op, std::size_t keys, const Deadline& deadline) {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (buffer_.size() > kKeptBuffer) std::vector<char>().swap(buffer_);
    receive_more(deadline);
  }
  proto::ReplyReader reader(op, keys);
  for (;;) {
    const proto::Status status = reader.read(std::string_view(buffer_.data() + begin_, end_ - begin_));
    if (status == proto::Status::ok) {
      contents_ = reader.contents();
      begin_ += reader.size();
      return contents_;
    }
    if (status == proto::Status::malformed) throw CorruptData(reader.reason());
    receive_more(deadline);
  }
}

void TcpConnection::receive_more(const Deadline& deadline) {
  // The answer is not here yet as a rule, so that asking for it first would be in vain.
  if (!wait_for(POLLIN, deadline)) {
    throw Timeout(fmt::format("receive from {}: timed out, {}", net::describe_peer(fd_.get()), deadline.progress()));
  }
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) buffer_.resize(std::max(kFirstBuffer, 2 * buffer_.size()));
  end_ += net::recv_some(fd_.get(), std::as_writable_bytes(std::span(buffer_)).subspan(end_), deadline);
}

UniqueFd TcpConnection::release(std::string& unread) && {
  unread.assign(buffer_.data() + begin_, end_ - begin_);
  return std::move(fd_);
}

net::HostPort TcpConnection::peer() const { return net::peer_address(fd_.get()); }

}  // namespace lockstep::store
