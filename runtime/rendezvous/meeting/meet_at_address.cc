// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/backoff.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"
#include "runtime/rendezvous/meeting/store_registry.h"

namespace lockstep::rendezvous {
namespace {

// An address tells nothing before somebody answers, so the store that answers is asked for its token.
std::shared_ptr<OwnedStore> connect_at_address(const MeetingPlan& plan, const Identity& identity,
                                               const Deadline& deadline) {
  std::string failure;
  for (net::Backoff backoff;;) {
    std::shared_ptr<OwnedStore> owned;
    try {
      owned = connect_to_job_store(
          endpoint_at(plan.address, plan.secret, plan, identity), plan, identity, deadline,
          "rank 0 must run on that host, must not have failed, and says if it knows that name as an "
          "address that other hosts do not reach");
    } catch (const Timeout& error) {
      throw with_history(error, failure);
    }
    try {
      const std::string token = owned->client->get(kTokenKey, deadline.sooner(kProbe));
      if (!StoreRegistry::of_process().has_used(identity.rank, token)) {
        // Marked, so that the next group of this process waits for a new store at this address.
        StoreRegistry::of_process().mark_used(identity.rank, token);
        return owned;
      }
      failure = kUsedStore;
    } catch (const Timeout&) {
      failure = "is a store that is not rank 0's of lockstep";
    } catch (const StoreError& error) {
      failure = error.what();  // it was on its way out
    }
    owned.reset();
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("rendezvous: {} has not reached rank 0 at {} (from {}), {}: the process that answers at this "
                      "address {}; look at rank 0's output",
                      whoami(identity), plan.address.to_string(), plan.told_by, deadline.progress(), failure));
    }
  }
}

std::shared_ptr<OwnedStore> host_at_address(const MeetingPlan& plan, const Identity& identity,
                                            const Deadline& deadline) {
  bool has_said = false;
  const net::HostLookup found = net::await_own(plan.address.host, deadline, [&](const net::HostLookup& seen) {
    if (!std::exchange(has_said, true)) {
      log_warn(
          "rendezvous: {} waits to host the store at {} (from {}): {}; correct this address if it is not an address of "
          "this host",
          whoami(identity), plan.address.to_string(), plan.told_by, seen.problem);
    }
    return true;
  });
  if (!found.is_here) {
    const std::string problem = fmt::format(
        "rendezvous: {} must host the store at {} (from {}) and can't{}: {}; start rank 0 on that host, or give an "
        "address of this one",
        whoami(identity), plan.address.to_string(), plan.told_by, found.is_name ? ", " + deadline.progress() : "",
        found.problem);
    if (found.is_name) throw Timeout(problem);
    throw InvalidArgument(problem);
  }
  const ListenPlace place = listen_place(plan, identity, found);
  if (!place.warning.empty()) log_warn("rendezvous: {}", place.warning);
  try {
    auto owned = host_store(place.listen, plan.secret, random_token(), plan, identity, deadline);
    if (place.listen.host.empty()) owned->address = plan.address.to_string();
    return owned;
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
  }
  report_taken(endpoint_at(plan.address, plan.secret, plan, identity), plan, identity);
}

}  // namespace

std::shared_ptr<OwnedStore> meet_at_address(const MeetingPlan& plan, const Identity& identity,
                                            const Deadline& deadline) {
  if (identity.rank != 0) return connect_at_address(plan, identity, deadline);
  auto owned = host_at_address(plan, identity, deadline);
  if (!plan.secret) {
    log_info(
        "rendezvous: this job has no secret: anyone who reaches {} can join, read or stop it. Set "
        "LOCKSTEP_STORE_SECRET (64 hex digits) or LOCKSTEP_STORE_SECRET_FILE to the same value on every rank",
        owned->address);
  }
  return owned;
}

}  // namespace lockstep::rendezvous
