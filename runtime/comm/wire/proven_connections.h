// SPDX-License-Identifier: Apache-2.0
// TCP connections of every rank with every other, on which both ends have proved that they are of the job.
//
// Each rank listens at a port of its own while the ranks connect, and no longer; it tells through the group's store
// where, with a ticket drawn by chance. A rank connects to all of lower number, and says before anything else:
//
//   connecting rank  16 bytes "lockstep wire 2\n", its number (4 bytes, least first), 32 bytes drawn by chance
//   listening rank   32 bytes drawn by chance
//   connecting rank  its proof, 32 bytes
//   listening rank   its proof, 32 bytes
//
// A proof is the HMAC-SHA256 with the job's secret of proto/proof.h's text: both draws, the listener's ticket in place
// of a run's id, and "rank 3 to rank 1" in place of a role. The other side checks it before it reads or sends anything
// else, and the wire has not seen the connection by then. A job without a secret proves with an empty one: the ticket
// keeps out who can't read the job's store.
//
// Whoever does not prove himself is turned away and named in the log; the others don't wait for him. A listener that
// does not is tried three times. What follows the greeting is neither encrypted nor signed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "proto/proof.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/unique_fd.h"
#include "runtime/store/secret.h"

namespace lockstep::wire {

struct ConnectOptions {
  std::string name;            // of the wire, for messages, and in lower case of the store's keys: "TCP"
  std::string interface = {};  // where to listen: the first address of this interface, or
  std::string address = {};    // this one of the host's, numeric
  std::string remedy = {};     // where a rank can't be reached: "name another interface in GLOO_SOCKET_IFNAME"
  std::shared_ptr<const store::Secret> secret = {};  // the job's; null if it has none
  std::function<void()> check = {};                  // called every 200 ms of a wait; ends it by throwing
};

// The sockets by rank, this rank's own empty; non-blocking, without Nagle's delay. Collective. Throws Timeout with the
// ranks that have not come, BackendUnavailable (no such interface; a listener that can't prove itself, with its
// address), what the store, `check` and net throw.
LOCKSTEP_INTERNAL_API std::vector<UniqueFd> connect_all(store::Store& store, const rendezvous::Roster& roster, int rank,
                                                        const ConnectOptions& options, const Deadline& deadline);

// The parts of the greeting, for tests that play a stranger.
inline constexpr std::string_view kWireGreeting = "lockstep wire 2\n";
inline constexpr std::size_t kDrawBytes = 32;
std::string wire_hello(int rank, std::string_view draw);
std::string wire_proof(const store::Secret* secret, proto::Prover prover, std::string_view draw_of_connecting,
                       std::string_view draw_of_listening, std::string_view ticket, int connecting, int listening);

}  // namespace lockstep::wire
