// The network interfaces of this host, as the kernel lists them.
#pragma once

#include <string>
#include <vector>

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

}  // namespace lockstep::net
