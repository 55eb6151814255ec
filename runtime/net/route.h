// SPDX-License-Identifier: Apache-2.0
// Which of this host's addresses faces another host, and at which one the other ranks find this rank.
#pragma once

#include <span>
#include <string>

#include "lockstep/base/environment.h"
#include "runtime/net/address.h"
#include "runtime/net/interfaces.h"

namespace lockstep::net {

// The address, numeric, from which this host would reach `where`, by its routes: nothing is sent. Where there are
// several ways, the kernel's choice. Throws StoreError if the name is unknown or no route leads there.
std::string address_towards(const HostPort& where);

// The address at which this rank's backends listen for the others: the one from which this host reaches the store at
// `store_address`, "host:port"; empty if the store is in this process ("in-process"). Where the job has several hosts
// and that is loopback, or the store's name leads to a bridge within this host, as on the host that hosts the store, it
// is the one that choose_interface() takes of `interfaces`, by `wishes`. Throws what address_towards() and
// choose_interface() throw.
std::string own_address(const std::string& store_address, bool several_hosts, std::span<const Interface> interfaces,
                        const Environment& wishes);

}  // namespace lockstep::net
