// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this host, and at which of their addresses other hosts should look for it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::net {

// One address of an interface that is up.
struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric, IPv4 or IPv6, without a scope
  bool loopback = false;
  bool running = true;  // it has a carrier
};

// In the kernel's order. SystemError.
std::vector<Interface> interfaces_of_this_host();

// The addresses of this host, loopback last. For messages such as "10.0.0.9 is no address of this host (its addresses:
// ...)". SystemError.
std::vector<std::string> local_addresses();

struct InterfaceChoice {
  std::string name;
  std::string address;
  std::string why;  // "NCCL_SOCKET_IFNAME=ib0 names it", "the first with a carrier that is no bridge of containers"
};

inline constexpr std::string_view kGlooInterface = "GLOO_SOCKET_IFNAME";
inline constexpr std::string_view kInterfaceVariables[] = {"NCCL_SOCKET_IFNAME", kGlooInterface};

// Pure. What the first of `variables` that is set wants, if one is: names with commas between, for NCCL's each the
// beginning of a name, "=" before the list for whole names, "^" for all but these. Of several the best, as
// choose_interface() ranks them. InvalidArgument if no interface is what it wants: lists those there are.
std::optional<InterfaceChoice> wished_interface(std::span<const Interface> interfaces, const Environment& environment,
                                                std::span<const std::string_view> variables = kInterfaceVariables);

// Pure. The wished interface; if none is wished: interfaces with a carrier before those without, those of other hosts
// before bridges and tunnels of containers and virtual machines, IPv4 before IPv6, addresses that work only on one link
// last, loopback if there is nothing else. Throws as wished_interface().
InterfaceChoice choose_interface(std::span<const Interface> interfaces, const Environment& environment);

// Whether other hosts can come to `address` of this host: it is neither loopback nor that of a bridge to containers or
// virtual machines on this host.
bool faces_others(std::span<const Interface> interfaces, const std::string& address);

// "eth0 10.0.0.7, lo 127.0.0.1", for messages.
std::string describe_interfaces(std::span<const Interface> interfaces);

}  // namespace lockstep::net
