#include "runtime/comm/init/own_address.h"

#include "runtime/base/logging.h"
#include "runtime/net/route.h"
#include "runtime/rendezvous/interfaces.h"

namespace lockstep {

std::string own_address(const std::string& store_address, const rendezvous::Roster& roster,
                        std::span<const net::Interface> interfaces, const Environment& wishes) {
  if (store_address.find(':') == std::string::npos) return {};
  std::string towards = net::address_towards(net::parse_host_port(store_address));
  if (!net::is_loopback({towards, 0}) || rendezvous::count_hosts(roster) == 1) return towards;
  const auto choice = rendezvous::choose_interface(interfaces, wishes);
  log_debug(
      "init: the way to the store at {} is by loopback, and there are other hosts: ranks find this one at {} ({})",
      store_address, choice.address, choice.why);
  return choice.address;
}

}  // namespace lockstep
