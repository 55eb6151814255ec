// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/connect_attempt.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/net/epoll.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kConnectLimit = 1s;
constexpr auto kRouteLimit = 5s;
constexpr int kTries = 3;

}  // namespace

ConnectAttempt::~ConnectAttempt() { net::close_watched(own_.epoll, socket_); }

void ConnectAttempt::connect() {
  received_.clear();
  connect_limit_ = Deadline::after(kConnectLimit);
  try {
    socket_ = net::tcp_begin_connect(place_.address);
  } catch (const SystemError& error) {
    return unreachable(error.error_number());
  }
  state_ = State::connecting;
  own_.watch(EPOLL_CTL_ADD, socket_.get(), EPOLLOUT);
}

void ConnectAttempt::unreachable(int error) {
  net::close_watched(own_.epoll, socket_);
  state_ = State::pausing;
  if (!route_limit_) route_limit_ = Deadline::after(kRouteLimit);
  // The kernel remembers for a while that it found no way to a host whose cable was out.
  const bool may_pass = (error == EHOSTUNREACH || error == ENETUNREACH) && !route_limit_->expired();
  if (may_pass || error == ETIMEDOUT) return;
  throw SystemError(fmt::format("connect to {}", place_.address.to_string()), error);
}

void ConnectAttempt::tick() {
  if (state_ == State::connecting && connect_limit_.expired()) unreachable(ETIMEDOUT);
  if (state_ != State::pausing) return;
  if (limit_.expired()) {
    throw Timeout(
        fmt::format("connect to {}: the attempt timed out, {}; see that the hosts reach each other at this address, "
                    "without a firewall between",
                    place_.address.to_string(), limit_.progress()));
  }
  connect();
}

void ConnectAttempt::reached() {
  route_limit_.reset();
  challenge_ = challenge_between(own_.rank, peer_, place_.ticket, store::random_nonce(), own_.secret.get());
  state_ = State::awaiting_challenge;
  own_.watch(EPOLL_CTL_MOD, socket_.get(), EPOLLIN);
  send_part(socket_.get(), hello_of(own_.rank, challenge_.client_nonce));
}

void ConnectAttempt::serve() {
  try {
    if (state_ == State::connecting) {
      const int error = net::tcp_connect_result(socket_.get());
      return error == 0 ? reached() : unreachable(error);
    }
    if (state_ == State::awaiting_challenge && receive_part(socket_.get(), proto::kNonceBytes, received_)) {
      challenge_.server_nonce = std::exchange(received_, {});
      state_ = State::awaiting_proof;
      send_part(socket_.get(), challenge_.prove(proto::Prover::client));
    } else if (state_ == State::awaiting_proof && receive_part(socket_.get(), kProofBytes, received_)) {
      if (!challenge_.verify(proto::Prover::server, received_)) return try_again("its proof is not one of this job");
      state_ = State::proven;
    }
  } catch (const net::ConnectionClosed&) {
    try_again("it ended the connection before it had proved itself");
  }
}

// A listener that ends a connection without an answer may only be short of room: that does not count as a try.
void ConnectAttempt::try_again(const std::string& problem) {
  const bool counts = state_ == State::awaiting_proof;
  net::close_watched(own_.epoll, socket_);
  state_ = State::pausing;
  if (counts) ++tries_;
  if (tries_ == kTries) {
    throw BackendUnavailable(fmt::format(
        "TCP: the process that listens at {}, the address of {}, could not prove to {} that it knows the job's "
        "secret, {} times: {}; run `ss -ltnp` on that host to see which process listens, and give all ranks one secret",
        place_.address.to_string(), own_.describe(peer_), own_.describe(own_.rank), kTries, problem));
  }
  if (counts) connect();
}

std::optional<UniqueFd> ConnectAttempt::take() {
  if (state_ != State::proven) return {};
  net::unwatch(own_.epoll, socket_.get());
  return std::move(socket_);
}

}  // namespace lockstep::tcp
