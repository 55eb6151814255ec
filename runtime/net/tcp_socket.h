// SPDX-License-Identifier: Apache-2.0
// TCP sockets: listen, accept, connect. All are non-blocking, close-on-exec and without Nagle's delay; stream.h sends
// and receives over them, event_loop.h serves many.
//
// A peer whose host has vanished (cut cable, power) is noticed in kVanishedAfter, also by who only waits to receive:
// the kernel probes a silent connection, and gives up one whose bytes nobody acknowledges. A peer that is merely
// stopped still has a kernel that answers.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"

namespace lockstep::net {

inline constexpr std::chrono::seconds kVanishedAfter{30};

// Listens at `where`. Port 0 takes a free one (local_address() tells which), where LOCKSTEP_PORT_RANGE is set one of
// those: InvalidArgument if it is not a range, SystemError with EADDRNOTAVAIL if all of them are taken; an empty host,
// and "::", take every address of this machine, IPv4 and IPv6 through one socket (IPv4 alone where the machine has no
// IPv6); a name that has both takes IPv4. Throws InvalidArgument if the host can't be resolved or is not an address of
// this machine (the message lists those it has), SystemError with error_number() EADDRINUSE if the port is taken.
UniqueFd tcp_listen(const HostPort& where);

// A host's name, or an address, as this host resolves it at this moment.
struct HostLookup {
  bool is_name = false;      // not a numeric address: another host, or a later look, may have another one for it
  bool is_known = false;     // the resolver has addresses for it
  bool is_here = false;      // this host can listen at one of them
  std::string address = {};  // that one, numeric, else the first; empty if it is not known
  std::string problem = {};  // why this host can't listen there; empty if it can
};
HostLookup look_up(const std::string& host);
// Looks a name up again, with growing pauses, until it is this host's; a numeric address once. Returns the last look,
// also when the deadline has passed or `keeps_waiting`, which is asked after each look that is in vain, says no.
HostLookup await_own(const std::string& host, const Deadline& deadline,
                     const std::function<bool(const HostLookup&)>& keeps_waiting);
// The address a socket is bound to.
HostPort local_address(int fd);
// The address of the other end.
HostPort peer_address(int fd);

// True if both ends of a connection are this socket. While nobody listens at a port of the ephemeral range, a connect
// to it on this host may be given that same port to come from, and then TCP connects it to itself.
bool is_connected_to_itself(int fd);

// Accepts a connection at a listener of tcp_listen if one is there, else an empty UniqueFd. Throws SystemError, with
// error_number() EMFILE, ENFILE, ENOBUFS or ENOMEM, if there is one and the system has no room for it.
UniqueFd tcp_try_accept(int listener);

// The meaning of a port where nobody listens.
enum class Refused {
  not_yet,   // who listens there may still start: try again
  for_good,  // who listened there has ended: SystemError (ECONNREFUSED) at once
};

// Connects, trying each address of the host, and retries what may be mended by waiting (refused, unreachable, name not
// known yet) with growing pauses until the deadline.
// Timeout lists each address, what became of it, and the time.
UniqueFd tcp_connect(const HostPort& where, const Deadline& deadline, Refused refused = Refused::not_yet);
// One round over the host's addresses, no retry: a refusal is a SystemError at once. For peers that must be there.
UniqueFd tcp_connect_once(const HostPort& where, const Deadline& deadline);

// Begins to connect to a numeric address and returns at once: when the socket is writable, tcp_connect_result() tells
// what came of it, 0 or the error of errno. SystemError if it can't even begin.
UniqueFd tcp_begin_connect(const HostPort& where);
int tcp_connect_result(int fd);

}  // namespace lockstep::net
