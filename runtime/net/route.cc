// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/route.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::net {
namespace {

// Connecting a datagram socket sends nothing: it only fixes the way, and with it the address of this end.
std::string source_of(const addrinfo& target) {
  const UniqueFd fd(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), target.ai_addr, target.ai_addrlen) != 0) return {};
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return {};
  char host[NI_MAXHOST];
  const int error =
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? host : std::string();
}

}  // namespace

std::string address_towards(const HostPort& where) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  // RFC 6761: localhost is this host, also where no /etc/hosts says so.
  const std::string host = is_localhost(where.host) || where.host.empty() ? "127.0.0.1" : where.host;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(where.port).c_str(), &hints, &first);
  if (error != 0) {
    throw StoreError(fmt::format("address '{}': {}; see that the name is known on this host", where.to_string(),
                                 error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  // IPv4 first, as when connecting to the store.
  for (const bool want_ipv4 : {true, false}) {
    for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
      if ((entry->ai_family == AF_INET) != want_ipv4) continue;
      if (auto source = source_of(*entry); !source.empty()) return source;
    }
  }
  throw StoreError(fmt::format("address '{}': no route leads there from this host; see its interfaces and routes",
                               where.to_string()));
}

std::string own_address(const std::string& store_address, bool several_hosts, std::span<const Interface> interfaces,
                        const Environment& wishes) {
  if (store_address.find(':') == std::string::npos) return {};
  std::string towards = address_towards(parse_host_port(store_address));
  if (!several_hosts || faces_others(interfaces, towards)) return towards;
  if (!is_loopback({towards, 0})) {
    // By a bridge within this host go stores in its containers too, and who names that bridge's address means it.
    const HostLookup store = look_up(parse_host_port(store_address).host);
    if (!store.is_name || !store.is_here) return towards;
  }
  const auto choice = choose_interface(interfaces, wishes);
  log_debug(
      "init: the way to the store at {} stays within this host, and there are other hosts: ranks find this one at {} "
      "({})",
      store_address, choice.address, choice.why);
  return choice.address;
}

}  // namespace lockstep::net
