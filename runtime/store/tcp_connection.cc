#include "runtime/store/tcp_connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::store {
namespace {

using proto::Op;

constexpr std::size_t kReadBytes = std::size_t{16} << 10;
// One greeting: a server that has accepted answers it at once, one that hasn't (a full queue) is better asked again.
constexpr auto kGreetingLimit = std::chrono::seconds(10);

}  // namespace

TcpConnection TcpConnection::open_once(const net::HostPort& where, const Deadline& deadline) {
  TcpConnection connection(net::tcp_connect_once(where, deadline));
  connection.greet(deadline);
  return connection;
}

TcpConnection TcpConnection::open(const net::HostPort& where, const Deadline& deadline) {
  net::Backoff backoff;
  for (int attempts = 1;; ++attempts) {
    TcpConnection connection(net::tcp_connect(where, deadline));
    std::string outcome;
    try {
      connection.greet(deadline.sooner(kGreetingLimit));
      return connection;
    } catch (const net::ConnectionClosed& error) {
      outcome = error.what();
    } catch (const Timeout& error) {
      outcome = error.what();
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("{} accepts connections but did not answer the greeting of a store client, {}, {} "
                      "attempts; last: {}; is it another program's port?",
                      where.to_string(), deadline.progress(), attempts, outcome));
    }
  }
}

void TcpConnection::greet(const Deadline& deadline) {
  const auto nonce = static_cast<std::int64_t>(::getpid());
  std::string bytes;
  proto::write_request(bytes, {Op::validate, {{}, {}, proto::kMagic}});
  proto::write_request(bytes, {Op::ping, {{}, {}, nonce}});
  send(bytes, deadline);
  const std::int64_t answer = receive(Op::ping, 0, deadline).number;
  if (answer != nonce) {
    throw StoreError(fmt::format("{} answered the greeting with {:#x}, {:#x} was wanted: it is no store server",
                                 peer().to_string(), answer, nonce));
  }
}

void TcpConnection::send(std::string_view bytes, const Deadline& deadline) {
  net::send_all(fd_.get(), bytes, deadline);
}

const proto::Contents& TcpConnection::receive(Op op, std::size_t keys, const Deadline& deadline) {
  input_.erase(0, given_);
  given_ = 0;
  proto::ReplyReader reader(op, keys);
  for (;;) {
    const proto::Status status = reader.read(input_);
    if (status == proto::Status::ok) {
      contents_ = reader.contents();
      given_ = reader.size();
      return contents_;
    }
    if (status == proto::Status::malformed) throw CorruptData(reader.reason());
    const std::size_t had = input_.size();
    input_.resize(had + kReadBytes);
    std::size_t received = 0;
    try {
      received = net::recv_some(fd_.get(), std::as_writable_bytes(std::span(input_)).subspan(had), deadline);
    } catch (...) {
      input_.resize(had);
      throw;
    }
    input_.resize(had + received);
  }
}

net::HostPort TcpConnection::peer() const { return net::peer_address(fd_.get()); }

}  // namespace lockstep::store
