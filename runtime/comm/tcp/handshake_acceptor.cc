// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/handshake_acceptor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/epoll.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::tcp {
namespace {

using namespace std::chrono_literals;

// A caller that has not proved itself by then is turned away.
constexpr auto kGreetingLimit = 10s;
// A caller that has not by then makes room for another one, where all places are taken.
constexpr auto kLeastPatience = 1s;
constexpr auto kNamingWindow = 60s;
// Callers that one serve() lets in, at most.
constexpr int kMostAccepted = 16;

}  // namespace

HandshakeAcceptor::HandshakeAcceptor(const OwnEnd& own, const std::string& address,
                                     std::function<bool(int rank)> has_another)
    : own_(own),
      has_another_(std::move(has_another)),
      listener_(net::tcp_listen({address, 0})),
      ticket_(random_hex(16)),
      log_limit_(kNamedStrangers, kNamingWindow) {
  own_.watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN);
}

HandshakeAcceptor::~HandshakeAcceptor() {
  for (Caller& caller : callers_) net::close_watched(own_.epoll, caller.socket);
  net::unwatch(own_.epoll, listener_.get());
  say_how_many_more(LogLimit::Time::max());
}

std::string HandshakeAcceptor::place() const {
  return fmt::format("{} {}", ticket_, net::local_address(listener_.get()).to_string());
}

bool HandshakeAcceptor::serve(int fd) {
  if (fd == listener_.get()) {
    accept_callers();
    return true;
  }
  const auto caller = std::ranges::find_if(callers_, [fd](const Caller& one) { return one.socket.get() == fd; });
  if (caller == callers_.end()) return false;
  // One that waits for its answer has nothing more to say: it has ended.
  if (caller->is_proven) {
    drop(caller);
  } else if (const std::string why = hear(*caller); !why.empty()) {
    turn_away(caller, why);
  }
  return true;
}

void HandshakeAcceptor::accept_callers() {
  for (int i = 0; i < kMostAccepted; ++i) {
    if (since_tick_ >= kMostStrangers || !make_room()) return pause(true);
    try {
      if (!accept_one()) return;
    } catch (const std::exception& error) {
      // The process has no descriptor to spare, or no memory: they wait until it has.
      say(fmt::format("accepts no connection for a moment: {}", error.what()));
      return pause(true);
    }
  }
}

bool HandshakeAcceptor::accept_one() {
  UniqueFd socket = net::tcp_try_accept(listener_.get());
  if (!socket) return false;
  const int fd = socket.get();
  std::string peer = net::describe_peer(fd);
  callers_.push_back({std::move(socket), std::move(peer), Deadline::after(kGreetingLimit)});
  own_.watch(EPOLL_CTL_ADD, fd, EPOLLIN);
  return true;
}

void HandshakeAcceptor::turn_away_all() {
  try {
    for (std::size_t i = 0; i < kMostCallers && accept_one(); ++i) {
    }
  } catch (const SystemError& error) {
    log_debug("TCP: {} can't see who else is there: {}", who(), error.what());
  }
  while (!callers_.empty()) {
    const auto caller = callers_.begin();
    // A rank that has given this one up, for it has another connection, is heard to have done so.
    const std::string why = caller->is_proven ? std::string() : hear(*caller);
    if (caller->is_proven) {
      drop(caller);
    } else {
      turn_away(caller, why.empty() ? "it had not proved itself when all ranks had connected" : why);
    }
  }
}

bool HandshakeAcceptor::make_room() {
  const auto is_open = [](const Caller& caller) { return !caller.is_proven; };
  if (static_cast<std::size_t>(std::count_if(callers_.begin(), callers_.end(), is_open)) < kMostCallers) return true;
  const auto oldest = std::find_if(callers_.begin(), callers_.end(), is_open);
  if (oldest->limit.remaining() > kGreetingLimit - kLeastPatience) return false;
  turn_away(oldest, fmt::format("it did not prove itself, {}, and others wait", oldest->limit.progress()));
  return true;
}

void HandshakeAcceptor::pause(bool is_paused) {
  if (std::exchange(is_paused_, is_paused) == is_paused) return;
  own_.watch(EPOLL_CTL_MOD, listener_.get(), is_paused ? 0u : EPOLLIN);
}

void HandshakeAcceptor::tick() {
  since_tick_ = 0;
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    const auto one = caller++;
    if (one->is_proven || !one->limit.expired()) continue;
    // Its bytes may be here, if this rank stood still.
    std::string why = hear(*one);
    if (why.empty() && !one->is_proven) why = fmt::format("it did not prove itself, {}", one->limit.progress());
    if (!why.empty()) turn_away(one, why);
  }
  say_how_many_more(std::chrono::steady_clock::now());
  pause(false);
}

std::string HandshakeAcceptor::hear(Caller& caller) {
  try {
    while (!caller.is_proven) {
      const bool has_said_hello = caller.rank >= 0;
      if (!receive_part(caller.socket.get(), has_said_hello ? kProofBytes : kHelloBytes, caller.received)) return {};
      if (std::string why = has_said_hello ? judge(caller) : challenge(caller); !why.empty()) return why;
      caller.received.clear();
    }
    return {};
  } catch (const net::ConnectionClosed& closed) {
    caller.has_given_up = caller.rank >= 0 && has_another_(caller.rank);
    return closed.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string HandshakeAcceptor::challenge(Caller& caller) {
  const auto rank = rank_in_hello(caller.received);
  if (!caller.received.starts_with(kGreeting) || !rank) return "it sent another greeting";
  if (*rank < 0 || *rank >= static_cast<int>(own_.roster.size()) || *rank == own_.rank) {
    return fmt::format("it calls itself rank {}, which doesn't connect here", *rank);
  }
  caller.rank = static_cast<int>(*rank);
  caller.challenge =
      challenge_between(caller.rank, own_.rank, ticket_, nonce_in_hello(caller.received), own_.secret.get());
  caller.challenge.server_nonce = store::random_nonce();
  send_part(caller.socket.get(), caller.challenge.server_nonce);
  return {};
}

std::string HandshakeAcceptor::judge(Caller& caller) const {
  if (!caller.challenge.verify(proto::Prover::client, caller.received)) {
    return fmt::format("it calls itself rank {} and could not prove that it knows the job's secret", caller.rank);
  }
  caller.is_proven = true;
  return {};
}

std::vector<int> HandshakeAcceptor::proven() const {
  std::vector<int> ranks;
  for (const Caller& caller : callers_) {
    if (caller.is_proven) ranks.push_back(caller.rank);
  }
  return ranks;
}

void HandshakeAcceptor::drop(Place caller) {
  net::close_watched(own_.epoll, caller->socket);
  callers_.erase(caller);
}

HandshakeAcceptor::Place HandshakeAcceptor::find_proven(int rank) {
  return std::find_if(callers_.begin(), callers_.end(),
                      [rank](const Caller& caller) { return caller.is_proven && caller.rank == rank; });
}

UniqueFd HandshakeAcceptor::accept(int rank) {
  const auto caller = find_proven(rank);
  UniqueFd socket = std::move(caller->socket);
  const std::string proof = caller->challenge.prove(proto::Prover::server);
  net::unwatch(own_.epoll, socket.get());
  callers_.erase(caller);
  try {
    send_part(socket.get(), proof);
  } catch (const Error&) {
    return {};
  }
  return socket;
}

void HandshakeAcceptor::refuse(int rank, const std::string& why) {
  const auto caller = find_proven(rank);
  if (why.empty()) {
    drop(caller);
  } else {
    turn_away(caller, why);
  }
}

void HandshakeAcceptor::turn_away(Place caller, const std::string& why) {
  if (caller->has_given_up) {
    drop(caller);
    return;
  }
  last_stranger_ = fmt::format("{}: {}", caller->peer, why);
  ++turned_away_;
  ++since_tick_;
  drop(caller);
  say(fmt::format("turned away {}", last_stranger_));
}

void HandshakeAcceptor::say(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  say_how_many_more(now);
  if (log_limit_.admit(now)) log_warn("TCP: {} {}", who(), what);
}

void HandshakeAcceptor::say_how_many_more(LogLimit::Time now) {
  if (log_limit_.left_out() == 0 || now < log_limit_.summary_time()) return;
  log_warn("TCP: {} turned away {} more", who(), log_limit_.take_left_out());
}

std::string HandshakeAcceptor::strangers() const {
  if (turned_away_ == 0) return {};
  return fmt::format("; {} that proved nothing were turned away, the last was {}", turned_away_, last_stranger_);
}

}  // namespace lockstep::tcp
