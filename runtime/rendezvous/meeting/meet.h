// SPDX-License-Identifier: Apache-2.0
// From an identity to the job's store: where the ranks meet.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/store/store.h"
#include "runtime/job/launcher_guard.h"
#include "runtime/net/address.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/init_method.h"
#include "runtime/store/endpoint.h"

namespace lockstep::rendezvous {

// How they will meet. In order: what the program passed, the launcher's store, what the launcher offers to find rank 0
// with, MASTER_ADDR and MASTER_PORT.
//
// The store's secret is what the ranks were given (LOCKSTEP_STORE_SECRET or _FILE), and then it is told nowhere. If
// they were given none: where rank 0 tells the others where its store is (socket, PMIx, file, torchrun's store) it
// draws one and tells it too, and says so where that is not a secret any more (torchrun's); where nothing is told (an
// address) the run is as open as torch's, and rank 0 logs that.
struct MeetingPlan {
  enum class RendezvousMethod {
    alone,           // a world of one: a store in this process, no socket
    launcher_store,  // LOCKSTEP_STORE: everyone is a client at `address`
    agent_store,     // torchrun's agent hosts a store of PyTorch's at `address`, where rank 0 tells of its own
    local_socket,    // one host, a launcher: rank 0 hosts a store on loopback and tells over a socket (local_meeting.h)
    pmix,            // several hosts, a PMIx server: rank 0 hosts a store and tells through it (pmix.h)
    file,            // file:///path: rank 0 hosts a store and tells in a file (file_meeting.h)
    address,         // tcp://, MASTER_ADDR: rank 0 hosts a store at `address`
  };
  RendezvousMethod method = RendezvousMethod::alone;
  net::HostPort address = {};
  std::string path = {};
  std::string told_by = {};  // for messages: "LOCKSTEP_STORE", "init_method tcp://", "MASTER_ADDR and MASTER_PORT"
  std::string socket = {};   // local_socket: its name
  std::optional<store::Secret> secret = {};  // LOCKSTEP_STORE_SECRET or _FILE
  std::string run_id = {};                   // what the store's server is told that this run is
  Environment interface_wishes = {};         // NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME (interfaces.h); pmix and file
  // Longest time that rank 0's store waits, at its end, for ranks that are still connected.
  std::chrono::nanoseconds leave_timeout = std::chrono::seconds(10);
};

// No socket; reads the secret's file if there is one. From the variables it takes LOCKSTEP_BOOTSTRAP ("", or "socket",
// "pmix" or "address", which choose between the methods that a launcher offers), the secret and the wishes for
// interfaces. `ancestors` are this process's, for launchers whose job has no other name (Identity::job_ancestors).
// Throws InvalidArgument, which says what to set, if there is no way to meet.
MeetingPlan plan_meeting(const Identity& identity, const InitMethod& method, const Environment& environment = {},
                         std::span<const Ancestor> ancestors = {});

// Where rank 0 listens for a plan of method `address`, whose host is `found` on this host (net::look_up): at that
// address; but a name in a run with a secret at every address, since other hosts may know another one for it. So too
// without a secret where several hosts are known to be and the name is an address here that they don't reach. A run
// that is known to be on one host, and a localhost of unknown hosts, stay where they are.
struct ListenPlace {
  net::HostPort listen = {};
  std::string warning = {};  // what is wrong with the name, and the remedy
};
ListenPlace listen_place(const MeetingPlan& plan, const Identity& identity, const net::HostLookup& found);

struct Meeting {
  // Where rank 0 hosts it, its last copy waits a moment for the other ranks to leave: leave_timeout at most, not for
  // those that have died or stopped answering, and 1 s at most while an exception is under way.
  std::shared_ptr<store::Store> store;
  std::string address;  // for people: "127.0.0.1:41233", "in-process"
  // Where further clients of this process find the same store; nothing if it is in this process alone.
  std::optional<store::Endpoint> endpoint = {};
};

// Goes there. While a meeting of this rank at the same place is alive, another one is at the same store: the groups are
// told apart when they join. A rank that has left a store of rank 0's doesn't come back to it: it waits for rank 0 to
// leave that one and to open the next. Throws Timeout (nobody there, or rank 0's name is not known there in time; says
// where, and what to do), InvalidArgument (a numeric address that is not this host's, a port in use), Mismatch (another
// process is rank 0 already), StoreError, BackendUnavailable.
Meeting meet(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline);

}  // namespace lockstep::rendezvous
