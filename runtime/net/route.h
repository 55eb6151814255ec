// Which of this host's addresses faces another host.
#pragma once

#include <string>

#include "runtime/net/address.h"

namespace lockstep::net {

// The address, numeric, from which this host would reach `where`, by its routes: nothing is sent. Where there are
// several ways, the kernel's choice. Throws StoreError if the name is unknown or no route leads there.
std::string address_towards(const HostPort& where);

}  // namespace lockstep::net
