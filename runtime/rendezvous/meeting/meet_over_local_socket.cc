// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/rendezvous/meeting/local_meeting.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"

namespace lockstep::rendezvous {
namespace {

StoreAdvertisement ask(const std::string& name, const Deadline& deadline) {
  return decode_advertisement(ask_local_meeting(name, deadline), fmt::format("unix socket @{}", name));
}

std::shared_ptr<OwnedStore> connect_via_socket(const MeetingPlan& plan, const Identity& identity,
                                               const Deadline& deadline) {
  std::string failure;
  for (net::Backoff backoff;;) {
    try {
      const StoreAdvertisement advertisement = ask(plan.socket, deadline);
      if (auto owned = connect_via_advertisement(advertisement, plan, identity, deadline.sooner(kProbe), failure))
        return owned;
    } catch (const Timeout& error) {
      throw with_history(error, failure);
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("rendezvous: {} could not connect to rank 0's store at the address from unix socket @{}, {}: "
                      "{}; look at rank 0's output",
                      whoami(identity), plan.socket, deadline.progress(), failure));
    }
  }
}

}  // namespace

std::shared_ptr<OwnedStore> meet_over_local_socket(const MeetingPlan& plan, const Identity& identity,
                                                   const Deadline& deadline) {
  if (identity.rank != 0) return connect_via_socket(plan, identity, deadline);
  try {
    auto [owned, advertisement] = host_advertised_store({"127.0.0.1", 0}, plan, identity, deadline);
    owned->announcement = std::make_shared<LocalMeeting>(plan.socket, encode(advertisement));
    return owned;
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
  }
  const StoreAdvertisement other = ask(plan.socket, deadline.sooner(kProbe));
  report_taken(endpoint_at(other.address, secret_of(other, plan, identity), plan, identity), plan, identity);
}

}  // namespace lockstep::rendezvous
