// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep::net {
namespace {

std::string numeric_host(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  const int error = ::getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return fmt::format("(address of family {}: {})", address->sa_family, ::gai_strerror(error));
  // An IPv4 peer of a dual-stack socket is an IPv4 peer to the reader.
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view text(host);
  const bool mapped = text.starts_with(kMapped) && text.find('.') != text.npos;
  return std::string(mapped ? text.substr(kMapped.size()) : text);
}

}  // namespace

std::string HostPort::to_string() const {
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

std::string parse_host(std::string_view text) {
  const auto fail = [&](std::string_view why) {
    return InvalidArgument(fmt::format("host '{}': {}; write only a name or an address, as in node0, 10.0.0.7 or ::1",
                                       printable(text), why));
  };
  const auto is_foreign = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '\x7f'; };
  if (std::ranges::any_of(text, is_foreign)) throw fail("no host has a space, a slash or a line's end in it");
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == text.npos) throw fail("'[' is not closed");
    if (close + 1 < text.size()) throw fail("something follows ']'");
    return std::string(text.substr(1, close - 1));
  }
  const auto colon = text.find(':');
  if (colon != text.npos && text.find(':', colon + 1) == text.npos) throw fail("it has a port");
  return std::string(text);
}

HostPort parse_host_port(std::string_view text, std::optional<std::uint16_t> default_port) {
  const auto fail = [&](std::string_view why) -> InvalidArgument {
    return InvalidArgument(
        fmt::format("address '{}': {}; write host:port, as in node0:29400, 10.0.0.7:29400 or "
                    "[::1]:29400",
                    printable(text), why));
  };
  HostPort result;
  std::string_view rest;  // from the colon of the port on
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == text.npos) throw fail("'[' is not closed");
    result.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') throw fail("only ':port' may follow ']'");
  } else {
    const auto colon = text.find(':');
    if (colon != text.npos && text.find(':', colon + 1) != text.npos) {
      throw fail("an IPv6 address needs brackets around it");
    }
    result.host = text.substr(0, colon);
    rest = colon == text.npos ? std::string_view{} : text.substr(colon);
  }
  if (rest.empty()) {
    if (!default_port) throw fail("it has no port");
    result.port = *default_port;
    return result;
  }
  const auto port = parse_int(rest.substr(1));
  if (!port || *port < 0 || *port > 65535) throw fail("the port is not a number from 0 to 65535");
  result.port = static_cast<std::uint16_t>(*port);
  return result;
}

std::string describe_address(const sockaddr* address, socklen_t size) {
  if (address->sa_family == AF_UNIX) {
    const auto* local = reinterpret_cast<const sockaddr_un*>(address);
    const auto length = static_cast<std::size_t>(size) - offsetof(sockaddr_un, sun_path);
    if (size <= offsetof(sockaddr_un, sun_path)) return "unix socket";
    if (local->sun_path[0] != '\0') return fmt::format("unix socket {}", local->sun_path);
    return fmt::format("unix socket @{}", std::string_view(local->sun_path + 1, length - 1));
  }
  std::uint16_t port = 0;
  if (address->sa_family == AF_INET) port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  if (address->sa_family == AF_INET6) port = ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  return HostPort{numeric_host(address, size), port}.to_string();
}

bool is_loopback(const HostPort& address) { return address.host.starts_with("127.") || address.host == "::1"; }

bool is_localhost(std::string_view name) {
  std::string lower(name.ends_with('.') ? name.substr(0, name.size() - 1) : name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "localhost" || lower.starts_with("localhost.") || lower.ends_with(".localhost") ||
         lower.starts_with("ip6-lo");  // ip6-localhost and ip6-loopback, as Debian's /etc/hosts has them
}

std::variant<std::vector<SocketAddress>, std::string> resolve(const HostPort& where, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* first = nullptr;
  const std::string port = std::to_string(where.port);
  const int error = ::getaddrinfo(where.host.empty() ? nullptr : where.host.c_str(), port.c_str(), &hints, &first);
  // RFC 6761: localhost is this host, also where no /etc/hosts says so, as in a bare container.
  if (error != 0 && is_localhost(where.host)) return resolve({"127.0.0.1", where.port}, passive);
  if (error != 0) return std::string(error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    addresses.push_back(address);
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& address) { return address.storage.ss_family == AF_INET; });
  return addresses;
}

}  // namespace lockstep::net
