// SPDX-License-Identifier: Apache-2.0
// Addresses as people write them: "node0:29400", "10.0.0.7:29400", "[fe80::1]:29400".
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::net {

struct HostPort {
  std::string host;        // a name or a numeric address, without brackets; empty means every address of this host
  std::uint16_t port = 0;  // 0: let the kernel choose (to listen)

  // "host:port", with brackets around an IPv6 address.
  std::string to_string() const;
  bool operator==(const HostPort&) const = default;
};

// Reads "host:port", "[::1]:port", ":port", and without a port if `default_port` is given. An IPv6 address with a port
// needs its brackets. Throws InvalidArgument with the text and what was wanted.
HostPort parse_host_port(std::string_view text, std::optional<std::uint16_t> default_port = {});

// Reads a host that stands alone, as in MASTER_ADDR: "node0", "10.0.0.7", "::1", "[::1]", "fe80::1%eth0"; empty stays
// empty. Throws InvalidArgument if it can be none: a port behind it, a space or a slash in it, a bracket too few.
std::string parse_host(std::string_view text);

// Whether the host, numeric, is this host as it sees itself: 127.0.0.0/8 or ::1. Nobody else reaches that.
bool is_loopback(const HostPort& address);

// Whether a name is this host to every host that looks it up (RFC 6761): "localhost" in any case, and names below it.
bool is_localhost(std::string_view name);

// "127.0.0.1:4711", "[::1]:4711", "unix socket @name".
std::string describe_address(const sockaddr* address, socklen_t size);

// An address as the kernel has it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string to_string() const { return describe_address(get(), size); }
};

// The addresses of a host, IPv4 first: "localhost" is then the same one for a listener and a connector. Or why there
// are none. Without a host loopback, or where `passive`, as for a listener, every address. The resolver's own time
// limits apply (resolv.conf), it can't be given a deadline.
std::variant<std::vector<SocketAddress>, std::string> resolve(const HostPort& where, bool passive = false);

}  // namespace lockstep::net
