// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/own_address.h"

#include <fmt/format.h>

namespace lockstep::tcp {

std::string OwnAddress::describe() const {
  return interface.empty() ? fmt::format("address {}", address)
                           : fmt::format("interface {} (GLOO_SOCKET_IFNAME)", interface);
}

OwnAddress choose_own_address(const Environment& environment, const std::string& local_address) {
  if (const auto names = environment.get("GLOO_SOCKET_IFNAME"))
    return {.interface = names->substr(0, names->find(','))};
  return {.address = local_address.empty() ? "127.0.0.1" : local_address};
}

}  // namespace lockstep::tcp
