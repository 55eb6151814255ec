// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/random_bytes.h"
#include "runtime/net/backoff.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/port_range.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_liveness.h"

namespace lockstep::net {
namespace {

// A connect that takes longer says once what it waits for.
constexpr std::chrono::seconds kQuiet{10};

// Options of every connection; accepted ones have them from their listener.
void set_connection_options(int fd) {
  constexpr int kIdleSeconds = 10;
  constexpr int kProbeSeconds = 5;
  constexpr int kProbes = static_cast<int>(kVanishedAfter.count() - kIdleSeconds) / kProbeSeconds;
  constexpr int kUserTimeout = static_cast<int>(std::chrono::milliseconds(kVanishedAfter).count());
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds, "TCP_KEEPIDLE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds, "TCP_KEEPINTVL");
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes, "TCP_KEEPCNT");
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeout, "TCP_USER_TIMEOUT");
}

UniqueFd make_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw SystemError("tcp: socket", errno);
  return fd;
}

UniqueFd listen_at(const SocketAddress& address, bool dual_stack) {
  UniqueFd fd = make_socket(address.storage.ss_family);
  set_connection_options(fd.get());
  // A port whose last connections linger in TIME_WAIT is free; one that somebody listens at is not.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (address.storage.ss_family == AF_INET6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, dual_stack ? 0 : 1, "IPV6_V6ONLY");
  }
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    const int error = errno;
    if (error == EADDRNOTAVAIL) {
      const std::string text = address.to_string();
      throw InvalidArgument(fmt::format("listen at {}: this is not an address of this host (its addresses: {}); {}",
                                        text, fmt::join(local_addresses(), ", "),
                                        is_loopback(parse_host_port(text))
                                            ? "as root give it its loopback address: ip link set lo up; ip addr add "
                                              "127.0.0.1/8 dev lo"
                                            : "name one of these, or the host that has it"));
    }
    const char* remedy = error == EADDRINUSE
                             ? " (another program listens there, which ss -ltnp names: choose another port)"
                         : error == EACCES ? " (a port that only root may take: choose one above 1023)"
                                           : "";
    throw SystemError(fmt::format("listen at {}{}", address.to_string(), remedy), error);
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) {
    throw SystemError(fmt::format("listen at {}", address.to_string()), errno);
  }
  return fd;
}

// The kernel's word: it also knows addresses that no interface lists.
bool is_own(const SocketAddress& address) {
  const UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address.get(), address.size) == 0;
}

// A host without IPv6 has no socket of that family, or no address to bind it to.
bool has_ipv6() {
  SocketAddress any;
  any.storage.ss_family = AF_INET6;
  any.size = sizeof(sockaddr_in6);
  return is_own(any);
}

UniqueFd listen_everywhere(std::uint16_t port) {
  SocketAddress any;
  if (has_ipv6()) {
    auto* address = reinterpret_cast<sockaddr_in6*>(&any.storage);
    address->sin6_family = AF_INET6;
    address->sin6_port = htons(port);
    any.size = sizeof(sockaddr_in6);
    return listen_at(any, true);
  }
  auto* address = reinterpret_cast<sockaddr_in*>(&any.storage);
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  any.size = sizeof(sockaddr_in);
  return listen_at(any, false);
}

// An address of this host's to listen at.
SocketAddress resolve_own(const HostPort& where) {
  const auto resolved = resolve(where, true);
  if (const auto* reason = std::get_if<std::string>(&resolved)) {
    throw InvalidArgument(fmt::format("listen at {}: the host is not known: {}; give one of this host's addresses: {}",
                                      where.to_string(), *reason, fmt::join(local_addresses(), ", ")));
  }
  const auto& addresses = std::get<std::vector<SocketAddress>>(resolved);
  const auto own = std::find_if(addresses.begin(), addresses.end(), is_own);
  return own == addresses.end() ? addresses.front() : *own;
}

HostPort to_host_port(const SocketAddress& address) { return parse_host_port(address.to_string()); }

// 0, or why not; `fd` is connected, or will be.
int begin_connect(const SocketAddress& address, UniqueFd& fd) {
  fd = make_socket(address.storage.ss_family);
  set_connection_options(fd.get());
  if (::connect(fd.get(), address.get(), address.size) == 0 || errno == EINPROGRESS || errno == EINTR) return 0;
  return errno;
}

// Connects to one address: 0 and `fd`, or what went wrong.
int connect_to(const SocketAddress& address, const Deadline& deadline, UniqueFd& fd) {
  UniqueFd attempt;
  if (const int error = begin_connect(address, attempt); error != 0) return error;
  if (!wait_writable(attempt.get(), deadline)) return ETIMEDOUT;
  if (const int error = tcp_connect_result(attempt.get()); error != 0) return error;
  fd = std::move(attempt);
  return 0;
}

// Time mends these: the listener, the route, the other host's start.
bool is_worth_a_retry(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EAGAIN:
    case EINTR: return true;
    default: return false;
  }
}

struct Round {
  UniqueFd fd;          // set if it succeeded
  int error = 0;        // of the last address, 0 if there was none
  std::string outcome;  // "10.0.0.7:29400: Connection refused (errno 111)", for each address
};

// Tries each address of the host once. One that swallows packets must not take the time of the others.
Round connect_round(const HostPort& where, const Deadline& deadline) {
  Round round;
  const auto resolved = resolve(where);
  if (const auto* reason = std::get_if<std::string>(&resolved)) {
    round.outcome = fmt::format("{}: {}", where.host, *reason);
    return round;
  }
  const auto& addresses = std::get<std::vector<SocketAddress>>(resolved);
  std::vector<std::string> outcomes;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto left = deadline.remaining();
    const bool last = i + 1 == addresses.size();
    const Deadline share = last ? deadline : deadline.sooner(left / static_cast<int>(addresses.size() - i));
    round.error = connect_to(addresses[i], share, round.fd);
    if (round.error == 0) return round;
    outcomes.push_back(fmt::format("{}: {}", addresses[i].to_string(), errno_text(round.error)));
  }
  round.outcome = fmt::format("{}", fmt::join(outcomes, ", "));
  return round;
}

UniqueFd listen_now(const HostPort& where) {
  if (where.host.empty() || where.host == "::") return listen_everywhere(where.port);
  return listen_at(resolve_own(where), false);
}

// Begins at any place of the range, so that the processes of a host don't all try the same ports first.
UniqueFd listen_in(const PortRange& range, const HostPort& where) {
  const HostPort own = where.host.empty() ? where : to_host_port(resolve_own(where));  // a name is looked up once
  std::array<std::byte, 4> bytes{};
  fill_random(bytes);
  const auto begin = std::bit_cast<std::uint32_t>(bytes) % static_cast<std::uint32_t>(range.size());
  for (int i = 0; i < range.size(); ++i) {
    const int port = range.first + (static_cast<int>(begin) + i) % range.size();
    try {
      return listen_now({own.host, static_cast<std::uint16_t>(port)});
    } catch (const SystemError& error) {
      if (error.error_number() != EADDRINUSE) throw;
    }
  }
  throw SystemError(fmt::format("listen at {}: {}: no port of these {} is free (give a wider range, or see with "
                                "`ss -ltnp` who listens there)",
                                own.host.empty() ? "every address" : own.host, range.describe(), range.size()),
                    EADDRNOTAVAIL);
}

}  // namespace

UniqueFd tcp_listen(const HostPort& where) {
  const auto range = where.port == 0 ? port_range(Environment::of_process()) : std::nullopt;
  return range ? listen_in(*range, where) : listen_now(where);
}

HostLookup look_up(const std::string& host) {
  std::array<std::byte, sizeof(in6_addr)> bytes{};
  const std::string plain = host.substr(0, host.find('%'));
  const bool is_numeric =
      ::inet_pton(AF_INET, plain.c_str(), bytes.data()) == 1 || ::inet_pton(AF_INET6, plain.c_str(), bytes.data()) == 1;
  HostLookup found{.is_name = !is_numeric};
  const auto resolved = resolve({host, 0}, true);
  if (const auto* reason = std::get_if<std::string>(&resolved)) {
    found.problem = fmt::format("{} is not known on this host: {}", host, *reason);
    return found;
  }
  const auto& addresses = std::get<std::vector<SocketAddress>>(resolved);
  const auto own = std::find_if(addresses.begin(), addresses.end(), is_own);
  found.is_known = true;
  found.is_here = own != addresses.end();
  found.address = to_host_port(found.is_here ? *own : addresses.front()).host;
  if (!found.is_here) {
    found.problem =
        fmt::format("{}{}{} is not an address of this host (its addresses: {})", host, is_numeric ? "" : " is ",
                    is_numeric ? "" : found.address + ", which", fmt::join(local_addresses(), ", "));
  }
  return found;
}

HostLookup await_own(const std::string& host, const Deadline& deadline,
                     const std::function<bool(const HostLookup&)>& keeps_waiting) {
  for (Backoff backoff;;) {
    HostLookup found = look_up(host);
    if (found.is_here || !found.is_name || !keeps_waiting(found) || !backoff.pause(deadline)) return found;
  }
}

bool is_connected_to_itself(int fd) {
  SocketAddress local;
  SocketAddress peer;
  if (::getsockname(fd, local.get(), &local.size) != 0 || ::getpeername(fd, peer.get(), &peer.size) != 0) return false;
  return local.size == peer.size && std::memcmp(&local.storage, &peer.storage, local.size) == 0;
}

HostPort local_address(int fd) {
  SocketAddress address;
  if (::getsockname(fd, address.get(), &address.size) != 0) throw SystemError("tcp: getsockname", errno);
  return to_host_port(address);
}

HostPort peer_address(int fd) {
  SocketAddress address;
  if (::getpeername(fd, address.get(), &address.size) != 0) throw SystemError("tcp: getpeername", errno);
  return to_host_port(address);
}

UniqueFd tcp_try_accept(int listener) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    switch (errno) {
      case EAGAIN: return {};
      // The client has gone again, or the network had an error for it (accept(2) passes these on).
      case EINTR:
      case ECONNABORTED:
      case EPROTO:
      case ENETDOWN:
      case ENETUNREACH:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case ENOPROTOOPT:
      case EOPNOTSUPP: break;
      default: throw SystemError("tcp: accept", errno);
    }
  }
}

UniqueFd tcp_connect(const HostPort& where, const Deadline& deadline, Refused refused) {
  Backoff backoff;
  auto say_at = Deadline::after(kQuiet);
  for (int attempts = 1;; ++attempts) {
    Round round = connect_round(where, deadline);
    if (round.fd) return std::move(round.fd);
    const bool is_final = round.error == ECONNREFUSED && refused == Refused::for_good;
    if (round.error != 0 && (is_final || !is_worth_a_retry(round.error))) {
      throw SystemError(fmt::format("connect to {} ({})", where.to_string(), round.outcome), round.error);
    }
    if (say_at.expired()) {
      say_at = Deadline::never();
      log_warn(
          "connect to {}: still trying, {}, {} attempts; last: {}; see that the process that should listen at this "
          "address has started, and that this host reaches the address",
          where.to_string(), deadline.progress(), attempts, round.outcome);
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("connect to {}: timed out, {}, {} attempts; last: {}; check the address, that the process that "
                      "should listen at it has started, and that no firewall is between",
                      where.to_string(), deadline.progress(), attempts, round.outcome));
    }
  }
}

UniqueFd tcp_connect_once(const HostPort& where, const Deadline& deadline) {
  Round round = connect_round(where, deadline);
  if (round.fd) return std::move(round.fd);
  if (round.error == ETIMEDOUT) {
    throw Timeout(fmt::format("connect to {}: timed out, {}: {}; see that this host reaches that address",
                              where.to_string(), deadline.progress(), round.outcome));
  }
  if (round.error == 0) throw InvalidArgument(fmt::format("connect to {}: {}", where.to_string(), round.outcome));
  throw SystemError(fmt::format("connect to {}", where.to_string()), round.error);
}

UniqueFd tcp_begin_connect(const HostPort& where) {
  const auto resolved = resolve(where);
  if (const auto* reason = std::get_if<std::string>(&resolved)) {
    throw InvalidArgument(fmt::format("connect to {}: {}", where.to_string(), *reason));
  }
  UniqueFd fd;
  const int error = begin_connect(std::get<std::vector<SocketAddress>>(resolved).front(), fd);
  if (error != 0) throw SystemError(fmt::format("connect to {}", where.to_string()), error);
  return fd;
}

int tcp_connect_result(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error == 0 && is_connected_to_itself(fd) ? ECONNREFUSED : error;
}

}  // namespace lockstep::net
