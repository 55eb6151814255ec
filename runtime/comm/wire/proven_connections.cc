// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/proven_connections.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <list>
#include <optional>
#include <span>

#include "lockstep/base/error.h"
#include "runtime/base/hmac.h"
#include "runtime/base/logging.h"
#include "runtime/base/random_bytes.h"
#include "runtime/base/text.h"
#include "runtime/net/address.h"
#include "runtime/net/backoff.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/patient_socket.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::wire {
namespace {

constexpr std::size_t kProofBytes = sizeof(Sha256Mac);
constexpr std::size_t kHelloBytes = kWireGreeting.size() + 4 + kDrawBytes;
constexpr std::chrono::milliseconds kLookInterval{200};
// Who has not proved himself by then is turned away.
constexpr std::chrono::seconds kGreetingLimit{10};
// Of one try to reach a host that does not answer.
constexpr std::chrono::seconds kConnectLimit{1};
// Until a host that was out of reach is one that there is no way to.
constexpr std::chrono::seconds kRouteLimit{5};
// At once. The others stay in the kernel's queue meanwhile, until one of these has been at his greeting for this long.
constexpr std::size_t kMostCallers = 64;
constexpr std::chrono::seconds kCrowdedLimit{1};
constexpr int kTries = 3;
constexpr int kNamedStrangers = 3;

std::string drawn() {
  std::string bytes(kDrawBytes, '\0');
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

bool is_proof(std::string_view bytes, std::string_view wanted) {
  return equal_in_constant_time(std::as_bytes(std::span(bytes)), std::as_bytes(std::span(wanted)));
}

std::string address_to_listen_at(const ConnectOptions& options) {
  if (options.interface.empty()) return options.address;
  const auto interfaces = net::interfaces_of_this_host();
  const auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const net::Interface& one) { return one.name == options.interface; });
  if (found != interfaces.end()) return found->address;
  throw BackendUnavailable(fmt::format("{}: this host has no interface '{}' (it has {}); take one of these",
                                       options.name, options.interface, net::describe_interfaces(interfaces)));
}

// Where a rank listens, and its ticket.
struct Place {
  net::HostPort address;
  std::string ticket;
};

// Somebody who has connected and not proved himself yet.
struct Caller {
  UniqueFd socket;
  std::string peer;  // his address
  Deadline limit = Deadline::after(kGreetingLimit);
  Deadline crowded_limit = Deadline::after(kCrowdedLimit);
  std::string received = {};
  std::string challenge = {};  // drawn for him; empty before his hello is here
  int rank = -1;               // by his own word
};

// One rank's part in connecting all.
class Connector {
 public:
  Connector(const rendezvous::Roster& roster, int rank, const ConnectOptions& options, const Deadline& deadline)
      : roster_(roster), rank_(rank), options_(options), deadline_(deadline), connections_(roster.size()) {}

  std::vector<UniqueFd> connect(store::Store& store) {
    const UniqueFd listener = net::tcp_listen({address_to_listen_at(options_), 0});
    ticket_ = random_hex(16);
    std::string name = options_.name;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    rendezvous::Consensus consensus(store, roster_, rank_,
                                    {.name = name,
                                     .what = options_.name + ": the ranks connect",
                                     .remedy = "see whether they still run",
                                     .check = options_.check});
    const auto own = fmt::format("{} {}", ticket_, net::local_address(listener.get()).to_string());
    const auto places = consensus.gather(own, deadline_);
    for (int peer = 0; peer < rank_; ++peer) {
      connections_[static_cast<std::size_t>(peer)] = connect_to(peer, place_of(peer, places));
    }
    // Those of higher number, who wait for this rank in theirs: rank 0 begins, and nobody waits in a circle.
    while (awaits_somebody()) look_for_callers(listener);
    turn_away_all(listener);
    // From here on the group's deadlines count, and the job's membership: a rank may be stopped for longer than that.
    for (const UniqueFd& connection : connections_) {
      if (connection) net::make_patient(connection.get());
    }
    if (turned_away_ > kNamedStrangers) {
      log_warn("{}: {} turned away {} more", options_.name, who(rank_), turned_away_ - kNamedStrangers);
    }
    return std::move(connections_);
  }

 private:
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  Place place_of(int peer, const std::vector<std::string>& places) const {
    std::string_view rest = places[static_cast<std::size_t>(peer)];
    Place place;
    place.ticket = take_word(rest);
    place.address = net::parse_host_port(rest);
    return place;
  }

  void look() const {
    if (options_.check) options_.check();
  }

  // The connecting side.
  UniqueFd connect_to(int peer, const Place& place) {
    std::string problem;
    for (int tries = 0; tries < kTries; ++tries) {
      UniqueFd socket = reached(place.address);
      try {
        if (prove_to(socket.get(), peer, place)) return socket;
        problem = "its proof is not one of this job";
      } catch (const net::ConnectionClosed&) {
        problem = "it ended the connection before it had proved itself";
      }
    }
    throw BackendUnavailable(
        fmt::format("{}: who listens at {}, where {} should, could not prove to {} that it knows the job's secret, {} "
                    "times: {}; see what listens there, and that all ranks have one secret",
                    options_.name, place.address.to_string(), who(peer), who(rank_), kTries, problem));
  }

  UniqueFd reached(const net::HostPort& address) const {
    const Deadline route = deadline_.sooner(kRouteLimit);
    net::Backoff backoff;
    for (;;) {
      try {
        return net::tcp_connect_once(address, deadline_.sooner(kConnectLimit));
      } catch (const Timeout&) {
        look();
        if (deadline_.expired()) throw;
      } catch (const SystemError& error) {
        // Of a host whose cable was out a moment ago the kernel remembers that there is no way to it.
        const bool may_pass = error.error_number() == EHOSTUNREACH || error.error_number() == ENETUNREACH;
        look();
        if (!may_pass || !backoff.pause(route)) throw;
      }
    }
  }

  // False if the other end proved nothing.
  bool prove_to(int socket, int peer, const Place& place) const {
    const std::string own = drawn();
    net::send_all(socket, wire_hello(rank_, own), deadline_);
    const std::string theirs = received(socket, kDrawBytes, peer);
    const auto proof = [&](proto::Prover prover) {
      return wire_proof(options_.secret.get(), prover, own, theirs, place.ticket, rank_, peer);
    };
    net::send_all(socket, proof(proto::Prover::client), deadline_);
    return is_proof(received(socket, kProofBytes, peer), proof(proto::Prover::server));
  }

  // The other rank may have others to greet first.
  std::string received(int socket, std::size_t bytes, int peer) const {
    std::string result(bytes, '\0');
    while (!net::wait_readable(socket, deadline_.sooner(kLookInterval))) {
      look();
      if (!deadline_.expired()) continue;
      throw Timeout(fmt::format("{}: {} did not answer {}, {}; see whether it still runs", options_.name, who(peer),
                                who(rank_), deadline_.progress()));
    }
    net::recv_exact(socket, std::as_writable_bytes(std::span(result)), deadline_);
    return result;
  }

  // The listening side.
  bool awaits_somebody() const {
    return std::any_of(connections_.begin() + rank_ + 1, connections_.end(),
                       [](const UniqueFd& connection) { return !connection; });
  }

  void look_for_callers(const UniqueFd& listener) {
    look();
    if (deadline_.expired()) throw_missing();
    if (callers_.size() >= kMostCallers && callers_.front().crowded_limit.expired()) {
      turn_away(callers_.front(),
                fmt::format("it did not prove itself, {}, and others wait", callers_.front().crowded_limit.progress()));
      callers_.pop_front();
    }
    std::vector<pollfd> fds;
    for (const Caller& caller : callers_) fds.push_back({caller.socket.get(), POLLIN, 0});
    if (callers_.size() < kMostCallers) fds.push_back({listener.get(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>(kLookInterval.count()));
    std::size_t i = 0;
    for (auto caller = callers_.begin(); caller != callers_.end(); ++i) {
      const bool stays = fds[i].revents == 0 ? is_in_time(*caller) : hear(*caller);
      caller = stays ? std::next(caller) : callers_.erase(caller);
    }
    if (i == fds.size() || fds[i].revents == 0) return;
    accept(listener);
  }

  // False if there is nobody.
  bool accept(const UniqueFd& listener) {
    UniqueFd socket = net::tcp_try_accept(listener.get());
    if (!socket) return false;
    std::string peer = net::describe_peer(socket.get());
    callers_.push_back({std::move(socket), std::move(peer)});
    return true;
  }

  // Every rank has come: who else is here, or in the kernel's queue, is none.
  void turn_away_all(const UniqueFd& listener) {
    for (std::size_t i = 0; i < kMostCallers && accept(listener); ++i) {
    }
    for (const Caller& caller : callers_) {
      turn_away(caller, "it had not proved itself when all ranks had connected");
    }
    callers_.clear();
  }

  bool is_in_time(const Caller& caller) {
    if (!caller.limit.expired()) return true;
    return turn_away(caller, fmt::format("it did not prove itself, {}", caller.limit.progress()));
  }

  // False when the caller is through, or turned away.
  bool hear(Caller& caller) {
    const std::size_t wanted = caller.challenge.empty() ? kHelloBytes : kHelloBytes + kProofBytes;
    try {
      std::string bytes(wanted - caller.received.size(), '\0');
      bytes.resize(net::recv_some(caller.socket.get(), std::as_writable_bytes(std::span(bytes)), caller.limit));
      caller.received += bytes;
      if (caller.received.size() < wanted) return true;
      return caller.challenge.empty() ? challenge(caller) : judge(caller);
    } catch (const Error& error) {
      return turn_away(caller, error.what());
    }
  }

  bool challenge(Caller& caller) {
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      rank |= static_cast<std::uint32_t>(static_cast<unsigned char>(caller.received[kWireGreeting.size() + i]))
              << (8 * i);
    }
    if (!caller.received.starts_with(kWireGreeting)) return turn_away(caller, "it sent another greeting");
    if (rank >= roster_.size() || static_cast<int>(rank) <= rank_) {
      return turn_away(caller, fmt::format("it calls itself rank {}, which doesn't connect here", rank));
    }
    caller.rank = static_cast<int>(rank);
    caller.challenge = drawn();
    net::send_all(caller.socket.get(), caller.challenge, caller.limit);
    return true;
  }

  bool judge(Caller& caller) {
    const std::string_view received = caller.received;
    const std::string_view theirs = received.substr(kHelloBytes - kDrawBytes, kDrawBytes);
    const auto proof = [&](proto::Prover prover) {
      return wire_proof(options_.secret.get(), prover, theirs, caller.challenge, ticket_, caller.rank, rank_);
    };
    if (!is_proof(received.substr(kHelloBytes), proof(proto::Prover::client))) {
      return turn_away(caller, fmt::format("it calls itself rank {} and could not prove that it knows the job's secret",
                                           caller.rank));
    }
    UniqueFd& connection = connections_[static_cast<std::size_t>(caller.rank)];
    if (connection) return turn_away(caller, fmt::format("rank {} has connected already", caller.rank));
    net::send_all(caller.socket.get(), proof(proto::Prover::server), caller.limit);
    connection = std::move(caller.socket);
    return false;
  }

  // False: the caller is through.
  bool turn_away(const Caller& caller, const std::string& why) {
    last_stranger_ = fmt::format("{}: {}", caller.peer, why);
    if (++turned_away_ <= kNamedStrangers) {
      log_warn("{}: {} turned away {}", options_.name, who(rank_), last_stranger_);
    }
    return false;
  }

  [[noreturn]] void throw_missing() const {
    std::vector<int> missing;
    for (std::size_t r = static_cast<std::size_t>(rank_) + 1; r < connections_.size(); ++r) {
      if (!connections_[r]) missing.push_back(static_cast<int>(r));
    }
    throw Timeout(fmt::format(
        "{}: {} did not connect to {}, {}{}; see that the hosts reach each other there, or {}", options_.name,
        joined(
            missing, [this](int rank) { return who(rank); }, ", ", 12),
        who(rank_), deadline_.progress(),
        turned_away_ == 0
            ? std::string()
            : fmt::format("; {} that proved nothing were turned away, the last was {}", turned_away_, last_stranger_),
        options_.remedy));
  }

  const rendezvous::Roster& roster_;
  const int rank_;
  const ConnectOptions& options_;
  const Deadline& deadline_;
  std::string ticket_;
  std::vector<UniqueFd> connections_;
  std::list<Caller> callers_;
  int turned_away_ = 0;
  std::string last_stranger_;
};

}  // namespace

std::string wire_hello(int rank, std::string_view draw) {
  std::string bytes(kWireGreeting);
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(static_cast<unsigned>(rank) >> (8 * i) & 0xff);
  return bytes.append(draw);
}

std::string wire_proof(const store::Secret* secret, proto::Prover prover, std::string_view draw_of_connecting,
                       std::string_view draw_of_listening, std::string_view ticket, int connecting, int listening) {
  static constexpr std::array<std::byte, store::Secret::kBytes> kNone{};
  const std::string text = proto::proof_text(prover, draw_of_connecting, draw_of_listening, ticket,
                                             fmt::format("rank {} to rank {}", connecting, listening));
  const std::string_view part = text;
  const std::span<const std::byte> key = secret == nullptr ? std::span<const std::byte>(kNone) : secret->bytes();
  const Sha256Mac mac = hmac_sha256(key, std::span(&part, 1));
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

std::vector<UniqueFd> connect_all(store::Store& store, const rendezvous::Roster& roster, int rank,
                                  const ConnectOptions& options, const Deadline& deadline) {
  return Connector(roster, rank, options, deadline).connect(store);
}

}  // namespace lockstep::wire
