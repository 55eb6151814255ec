// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/meet.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"
#include "runtime/rendezvous/meeting/store_registry.h"
#include "runtime/store/hash_store.h"

namespace lockstep::rendezvous {
namespace {

using RendezvousMethod = MeetingPlan::RendezvousMethod;

// Names where the ranks of this plan meet, in this process.
std::string place_of(const MeetingPlan& plan, const Identity& identity) {
  return fmt::format("{} {} {}{} {}", static_cast<int>(plan.method), plan.address.to_string(), plan.path, plan.socket,
                     identity.world_size);
}

std::shared_ptr<OwnedStore> go(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  switch (plan.method) {
    case RendezvousMethod::alone: break;
    case RendezvousMethod::launcher_store: return meet_at_launchers_store(plan, identity, deadline);
    case RendezvousMethod::agent_store: return meet_through_agent(plan, identity, deadline);
    case RendezvousMethod::local_socket: return meet_over_local_socket(plan, identity, deadline);
    case RendezvousMethod::pmix: return meet_over_pmix(plan, identity, deadline);
    case RendezvousMethod::file: return meet_at_file(plan, identity, deadline);
    case RendezvousMethod::address: return meet_at_address(plan, identity, deadline);
  }
  throw InvalidArgument("rendezvous: no such means of meeting");
}

}  // namespace

Meeting meet(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  if (plan.method == RendezvousMethod::alone)
    return {.store = std::make_shared<store::HashStore>(), .address = "in-process"};
  const std::string place = place_of(plan, identity);
  auto owned = StoreRegistry::of_process().find(identity.rank, place);
  if (!owned) {
    // Outside of the registry's lock: rank 0, for which this one may wait, may be another thread of this process.
    owned = go(plan, identity, deadline);
    StoreRegistry::of_process().add(identity.rank, place, owned);
  }
  store::Store* const store = owned->client.get();
  Meeting meeting{.store = nullptr, .address = owned->address, .endpoint = owned->endpoint};
  // Shares the ownership of all of `owned`: the server lives as long as somebody holds the store.
  meeting.store = std::shared_ptr<store::Store>(std::move(owned), store);
  return meeting;
}

}  // namespace lockstep::rendezvous
