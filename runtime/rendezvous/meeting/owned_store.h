// SPDX-License-Identifier: Apache-2.0
// A store that this process hosts or is connected to, and everything that must live as long as that.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/deadline.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::rendezvous {

// Holds what the store's host drew to tell it from every other (random_token()).
inline constexpr std::string_view kTokenKey = "rendezvous/token";

struct OwnedStore {
  std::unique_ptr<store::TcpStoreServer> server;  // rank 0's
  std::shared_ptr<void> session;                  // a launcher's server stays connected (PMIx, torchrun's store)
  std::shared_ptr<void> announcement;             // what tells the others of it
  std::unique_ptr<store::Store> client;
  store::Endpoint endpoint;
  std::string address;  // for people
  std::chrono::nanoseconds leave_timeout{};

  OwnedStore() = default;
  OwnedStore(const OwnedStore&) = delete;
  OwnedStore& operator=(const OwnedStore&) = delete;
  // The host takes back what it told, closes its address, and waits for the others to leave.
  ~OwnedStore();
};

// The endpoint of a store of lockstep's for this rank.
store::Endpoint endpoint_at(const net::HostPort& address, const std::optional<store::Secret>& secret,
                            const MeetingPlan& plan, const Identity& identity);

// Rank 0's: a server that listens at `listen`, and knows `token` before anybody is told of it. Throws what
// net::tcp_listen throws.
std::shared_ptr<OwnedStore> host_store(const net::HostPort& listen, const std::optional<store::Secret>& secret,
                                       const std::string& token, const MeetingPlan& plan, const Identity& identity,
                                       const Deadline& deadline);

// Connects as a client. Errors are the store's own.
std::shared_ptr<OwnedStore> connect_to_store(const store::Endpoint& endpoint, const Deadline& deadline);

}  // namespace lockstep::rendezvous
