// Which of this host's addresses other hosts should come to, where nobody named one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/net/interfaces.h"

namespace lockstep::rendezvous {

using net::Interface;

struct InterfaceChoice {
  std::string name;
  std::string address;
  std::string why;  // "NCCL_SOCKET_IFNAME=ib0 names it", "the first with a carrier that is no bridge of containers"
};

// Pure. What NCCL_SOCKET_IFNAME wants, else what GLOO_SOCKET_IFNAME wants: names with commas between, for NCCL's each
// the beginning of a name, "=" before the list for whole names, "^" for all but these. If neither is set: interfaces
// with a carrier before those without, those of other hosts before bridges and tunnels of containers and virtual
// machines, IPv4 before IPv6, addresses that work only on one link last, loopback if there is nothing else.
// InvalidArgument if one of the two is set and no interface is what it wants: lists those there are.
InterfaceChoice choose_interface(std::span<const Interface> interfaces, const Environment& environment);

// "eth0 10.0.0.7, lo 127.0.0.1", for messages.
std::string describe_interfaces(std::span<const Interface> interfaces);

}  // namespace lockstep::rendezvous
