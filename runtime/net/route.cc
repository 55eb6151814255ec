// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/route.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::net {
namespace {

// Connecting a datagram socket sends nothing: it only fixes the way, and with it the address of this end.
std::string source_of(const SocketAddress& target) {
  const UniqueFd fd(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), target.get(), target.size) != 0) return {};
  return local_address(fd.get()).host;
}

}  // namespace

std::string address_towards(const HostPort& where) {
  const auto resolved = resolve(where);
  if (const auto* reason = std::get_if<std::string>(&resolved)) {
    throw StoreError(
        fmt::format("address '{}': {}; see that this host can resolve the name", where.to_string(), *reason));
  }
  for (const SocketAddress& target : std::get<std::vector<SocketAddress>>(resolved)) {
    if (auto source = source_of(target); !source.empty()) return source;
  }
  throw StoreError(
      fmt::format("address '{}': no route leads from this host to this address; check this host's interfaces and "
                  "routes (ip addr, ip route)",
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
