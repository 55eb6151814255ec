// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/rendezvous_methods.h"

#include <fmt/format.h>

#include "runtime/base/logging.h"
#include "runtime/net/interfaces.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/store_registry.h"
#include "runtime/store/client/tcp_store.h"

namespace lockstep::rendezvous {

std::string whoami(const Identity& identity) { return fmt::format("rank {}/{}", identity.rank, identity.world_size); }

bool is_one_host(const Identity& identity) {
  return identity.local_world_size_known && identity.local_world_size == identity.world_size;
}

bool is_several_hosts(const Identity& identity) {
  return identity.local_world_size_known && identity.local_world_size < identity.world_size;
}

std::string describe_hidden_name(const MeetingPlan& plan, const std::string& address, std::string_view listens) {
  return fmt::format(
      "{} (from {}) is {} on this host, where ranks of other hosts don't come; the store listens {}; correct "
      "/etc/hosts, or give an address that other hosts know",
      plan.address.host, plan.told_by, address, listens);
}

ListenPlace listen_place(const MeetingPlan& plan, const Identity& identity, const net::HostLookup& found) {
  const net::HostPort there{found.address, plan.address.port};
  if (!found.is_name || is_one_host(identity)) return {there};
  const bool is_hidden = !net::faces_others(net::interfaces_of_this_host(), found.address);
  // Where nobody said how many hosts there are, a person who says localhost knows.
  if (!is_several_hosts(identity) && net::is_localhost(plan.address.host)) return {there};
  if (plan.secret || (is_hidden && is_several_hosts(identity))) {
    return {{"", there.port}, is_hidden ? describe_hidden_name(plan, found.address, "on every address") : ""};
  }
  if (!is_hidden) return {there};
  return {there, describe_hidden_name(plan, found.address, "there, for ranks of this host only") +
                     ", or give all ranks the same LOCKSTEP_STORE_SECRET: with one it listens on every address"};
}

net::HostPort outward_address(const MeetingPlan& plan) {
  const net::InterfaceChoice choice = net::choose_interface(net::interfaces_of_this_host(), plan.interface_wishes);
  log_info(
      "rendezvous: the store listens at {} of {} ({}); set NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME for another "
      "interface",
      choice.address, choice.name, choice.why);
  return {choice.address, 0};
}

AdvertisedStore host_advertised_store(const net::HostPort& listen, const MeetingPlan& plan, const Identity& identity,
                                      const Deadline& deadline) {
  const std::string token = random_token();
  const store::Secret secret = plan.secret ? *plan.secret : store::Secret::random();
  auto owned = host_store(listen, secret, token, plan, identity, deadline);
  StoreAdvertisement advertisement{.address = owned->endpoint.address, .token = token};
  if (!plan.secret) advertisement.secret = secret;
  return {std::move(owned), std::move(advertisement)};
}

store::Secret secret_of(const StoreAdvertisement& advertisement, const MeetingPlan& plan, const Identity& identity) {
  if (advertisement.secret && !plan.secret) return *advertisement.secret;
  if (!advertisement.secret && plan.secret) return *plan.secret;
  if (plan.secret) {
    throw Mismatch(
        fmt::format("rendezvous: {} was given a secret, but rank 0 at {} was not; set LOCKSTEP_STORE_SECRET or "
                    "LOCKSTEP_STORE_SECRET_FILE on every rank, or on none",
                    whoami(identity), advertisement.address.to_string()));
  }
  throw Mismatch(
      fmt::format("rendezvous: {} was not given a secret, but rank 0 at {} was given one; set LOCKSTEP_STORE_SECRET or "
                  "LOCKSTEP_STORE_SECRET_FILE on every rank, or on none",
                  whoami(identity), advertisement.address.to_string()));
}

std::shared_ptr<OwnedStore> connect_via_advertisement(const StoreAdvertisement& advertisement, const MeetingPlan& plan,
                                                      const Identity& identity, const Deadline& deadline,
                                                      std::string& failure) {
  if (StoreRegistry::of_process().has_used(identity.rank, advertisement.token)) {
    failure = kUsedStore;
    return nullptr;
  }
  const store::Secret secret = secret_of(advertisement, plan, identity);
  try {
    auto owned = connect_to_store(endpoint_at(advertisement.address, secret, plan, identity), deadline);
    if (owned->client->get(kTokenKey, deadline) == advertisement.token) {
      StoreRegistry::of_process().mark_used(identity.rank, advertisement.token);
      return owned;
    }
    failure = "another run's store answers there";
  } catch (const Timeout& error) {
    if (failure.empty()) failure = error.what();  // a last attempt without time says less than those before it
  } catch (const Error& error) {
    failure = error.what();
  }
  return nullptr;
}

std::shared_ptr<OwnedStore> connect_to_job_store(const store::Endpoint& endpoint, const MeetingPlan& plan,
                                                 const Identity& identity, const Deadline& deadline,
                                                 std::string_view remedy) {
  const std::string address = endpoint.address.to_string();
  try {
    return connect_to_store(endpoint, deadline);
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("rendezvous: {} didn't reach the job's store at {} (from {}), {}: {}; {}",
                              whoami(identity), address, plan.told_by, deadline.progress(), error.what(), remedy));
  } catch (const StoreError& error) {
    throw StoreError(fmt::format(
        "rendezvous: {} found no store of this job at {} (from {}): {}; see which program listens at this address",
        whoami(identity), address, plan.told_by, error.what()));
  }
}

Timeout with_history(const Timeout& error, const std::string& failure) {
  if (failure.empty()) return error;
  return Timeout(fmt::format("{}; what had answered before {}", error.what(), failure));
}

void report_taken(const store::Endpoint& there, const MeetingPlan& plan, const Identity& identity) {
  const std::string address = there.address.to_string();
  std::string other;
  try {
    store::TcpStore probe(there, Deadline::after(kProbe));
    other = claimant_of(probe, identity, 0, Deadline::after(kProbe));
  } catch (const Error& error) {
    throw InvalidArgument(
        fmt::format("rendezvous: {} can't host the store at {} (from {}): another program listens there "
                    "({}); choose a free port, or end that program",
                    whoami(identity), address, plan.told_by, error.what()));
  }
  throw Mismatch(
      fmt::format("rendezvous: two processes are rank 0 of {}: {} and {}; give each process its own RANK, and "
                  "let an earlier run end before the next one uses {}",
                  identity.world_size, other, self_member(identity).describe(), address));
}

std::shared_ptr<OwnedStore> meet_at_launchers_store(const MeetingPlan& plan, const Identity& identity,
                                                    const Deadline& deadline) {
  return connect_to_job_store(endpoint_at(plan.address, plan.secret, plan, identity), plan, identity,
                              deadline.sooner(kPresent), "its launcher hosts it and must still run");
}

}  // namespace lockstep::rendezvous
