// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/backoff.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meeting/means.h"
#include "runtime/rendezvous/meeting/store_registry.h"

namespace lockstep::rendezvous {
namespace {

// An address tells nothing before somebody answers, so who has answered is asked for its token.
std::shared_ptr<OwnedStore> connect_at_address(const MeetingPlan& plan, const Identity& identity,
                                               const Deadline& deadline) {
  std::string failure;
  for (net::Backoff backoff;;) {
    std::shared_ptr<OwnedStore> owned;
    try {
      owned = connect_to_job_store(endpoint_at(plan.address, plan.secret, plan, identity), plan, identity, deadline,
                                   "rank 0 must run on that host, and must not have failed");
    } catch (const Timeout& error) {
      throw with_history(error, failure);
    }
    try {
      const std::string token = owned->client->get(kTokenKey, deadline.sooner(kProbe));
      if (!StoreRegistry::of_process().has_used(identity.rank, token)) {
        StoreRegistry::of_process().mark_used(identity.rank, token);
        return owned;
      }
      failure = kUsedStore;
    } catch (const Timeout&) {
      failure = "is a store that is no rank 0's of lockstep";
    } catch (const StoreError& error) {
      failure = error.what();  // it was on its way out
    }
    owned.reset();
    if (!backoff.pause(deadline)) {
      throw Timeout(fmt::format("rendezvous: {} has not met rank 0 at {} (from {}), {}: what answers there {}; {}",
                                whoami(identity), plan.address.to_string(), plan.told_by, deadline.progress(), failure,
                                kLookAtRankZero));
    }
  }
}

// Where to listen for `plan.address`, of which ranks of other hosts must have another idea than this one.
net::HostPort address_for_others(const MeetingPlan& plan, const Identity& identity) {
  const net::HostPort numeric = net::listen_address(plan.address);
  const bool by_name = numeric.host != plan.address.host;
  if (!by_name || !net::is_loopback(numeric) || is_one_host(identity)) return numeric;
  if (is_several_hosts(identity)) {
    warn_of_loopback(plan, numeric, "on every address");
    return {"", plan.address.port};
  }
  // Nobody said how many hosts there are. A person who says localhost knows.
  if (plan.address.host != "localhost") warn_of_loopback(plan, numeric, "there, for ranks of this host only");
  return numeric;
}

std::shared_ptr<OwnedStore> host_at_address(const MeetingPlan& plan, const Identity& identity,
                                            const Deadline& deadline) {
  try {
    const net::HostPort listen = address_for_others(plan, identity);
    auto owned = host_store(listen, plan.secret, random_token(), plan, identity, deadline);
    if (listen.host.empty()) owned->address = plan.address.to_string();
    return owned;
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("rendezvous: {} must host the store at {} (from {}) and can't: {}; start rank 0 on "
                    "that host, or give an address of this one",
                    whoami(identity), plan.address.to_string(), plan.told_by, error.what()));
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
        "rendezvous: this run is as open as torch's: whoever reaches its store at {} can join, read or stop it; to "
        "close it give every rank the same LOCKSTEP_STORE_SECRET (64 hex digits) or LOCKSTEP_STORE_SECRET_FILE",
        owned->address);
  }
  return owned;
}

}  // namespace lockstep::rendezvous
