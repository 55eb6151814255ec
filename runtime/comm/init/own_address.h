// Which address of this host's its backends listen at for the other ranks.
#pragma once

#include <span>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/net/interfaces.h"
#include "runtime/rendezvous/roster.h"

namespace lockstep {

// The one from which this host reaches the store at `store_address`, "host:port"; empty if the store is in this process
// ("in-process"). Where that is loopback and the job has several hosts, as on the host that hosts the store, the one
// that choose_interface() takes of `interfaces`, by `wishes`. Throws what net::address_towards and it throw.
std::string own_address(const std::string& store_address, const rendezvous::Roster& roster,
                        std::span<const net::Interface> interfaces, const Environment& wishes);

}  // namespace lockstep
