// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/owned_store.h"

#include <fmt/format.h>

#include <exception>

#include "runtime/base/logging.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/client/tcp_store.h"

namespace lockstep::rendezvous {
namespace {

// A leaving host of the store says that it waits after this long; while an exception is under way it waits no longer.
constexpr std::chrono::seconds kQuietLeave{1};

// The server's own side of the connections of dead processes is closed, so nobody waits for them.
void let_others_leave(store::TcpStoreServer& server, std::chrono::nanoseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  if (server.wait_until_idle(deadline.sooner(kQuietLeave)) || std::uncaught_exceptions() > 0) return;
  log_info(
      "rendezvous: the other ranks still use the store at {} of this process; this process waits up to {} s for them",
      server.address().to_string(), std::chrono::duration<double>(limit).count());
  if (server.wait_until_idle(deadline)) return;
  log_warn(
      "rendezvous: this process ends while {} connections to its store at {} are open; the ranks of these connections "
      "will get a StoreError: see in their output why they are late",
      server.client_count(), server.address().to_string());
}

}  // namespace

// The announcement ends first, then the listener, then this rank's client, then the server.
OwnedStore::~OwnedStore() {
  // Nobody should come any more: the ranks may already look at this address for their next group's store.
  announcement.reset();
  if (server) server->stop_listening();
  // The client before the wait, which would otherwise wait for this rank's own connection.
  client.reset();
  if (server) let_others_leave(*server, leave_timeout);
}

store::Endpoint endpoint_at(const net::HostPort& address, const std::optional<store::Secret>& secret,
                            const MeetingPlan& plan, const Identity& identity) {
  return {.address = address, .secret = secret, .run_id = plan.run_id, .role = fmt::format("rank {}", identity.rank)};
}

std::shared_ptr<OwnedStore> host_store(const net::HostPort& listen, const std::optional<store::Secret>& secret,
                                       const std::string& token, const MeetingPlan& plan, const Identity& identity,
                                       const Deadline& deadline) {
  auto owned = std::make_shared<OwnedStore>();
  owned->leave_timeout = plan.leave_timeout;
  owned->server = std::make_unique<store::TcpStoreServer>(
      store::TcpStoreServerOptions{.listen = listen,
                                   .secret = secret,
                                   .run_id = plan.run_id,
                                   .extension = std::make_shared<membership::MembershipServer>()});
  owned->endpoint = endpoint_at(owned->server->address(), secret, plan, identity);
  owned->address = owned->endpoint.address.to_string();
  owned->client = std::make_unique<store::TcpStore>(owned->endpoint, deadline);
  owned->client->set(kTokenKey, token);
  return owned;
}

std::shared_ptr<OwnedStore> connect_to_store(const store::Endpoint& endpoint, const Deadline& deadline) {
  auto owned = std::make_shared<OwnedStore>();
  owned->endpoint = endpoint;
  owned->address = endpoint.address.to_string();
  owned->client = std::make_unique<store::TcpStore>(endpoint, deadline);
  return owned;
}

}  // namespace lockstep::rendezvous
