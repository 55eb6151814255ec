// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/describe.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/meet.h"

namespace lockstep::rendezvous {
namespace {

using RendezvousMethod = MeetingPlan::RendezvousMethod;

std::string known(bool is_known, int value) { return is_known ? std::to_string(value) : "?"; }

std::string describe_rank(const Identity& identity) {
  if (identity.size_from_pmix) {
    return fmt::format("{} of a number that the launcher's PMIx server knows", identity.rank);
  }
  return fmt::format("{}/{} (local {}/{}, node {})", identity.rank, identity.world_size,
                     known(identity.local_rank_known, identity.local_rank),
                     known(identity.local_world_size_known, identity.local_world_size),
                     known(identity.node_rank.has_value(), identity.node_rank.value_or(0)));
}

std::string describe_meeting(const MeetingPlan& plan) {
  const std::string address = plan.address.to_string();
  switch (plan.method) {
    case RendezvousMethod::alone: return "none: a world of one";
    case RendezvousMethod::launcher_store: return fmt::format("at the store {} (from {})", address, plan.told_by);
    case RendezvousMethod::agent_store: return fmt::format("through the store of torchrun's agent at {}", address);
    case RendezvousMethod::local_socket:
      return fmt::format("over the Unix socket @{} (job of {})", plan.socket, plan.told_by);
    case RendezvousMethod::pmix: return fmt::format("through the PMIx server of {}", plan.told_by);
    case RendezvousMethod::file: return fmt::format("at the file {}", plan.path);
    case RendezvousMethod::address: return fmt::format("rank 0 hosts the store at {} (from {})", address, plan.told_by);
  }
  return {};
}

// Where the secret is from, which depends on who can tell it to whom.
std::string describe_secret(RendezvousMethod method, bool given) {
  if (method == RendezvousMethod::alone) return "none needed";
  if (given) return "given by LOCKSTEP_STORE_SECRET or LOCKSTEP_STORE_SECRET_FILE";
  if (method == RendezvousMethod::local_socket || method == RendezvousMethod::pmix ||
      method == RendezvousMethod::file) {
    return "drawn by rank 0, told to the others when they meet";
  }
  if (method == RendezvousMethod::agent_store)
    return "drawn by rank 0, told through torchrun's store, which everybody may read";
  return "none: whoever reaches the store can join, read or stop the run; set LOCKSTEP_STORE_SECRET on every rank";
}

}  // namespace

std::vector<Fact> describe_rendezvous(const Environment& environment, std::span<const Ancestor> ancestors,
                                      std::span<const net::Interface> interfaces) {
  std::vector<Fact> facts;
  const auto say = [&](std::string name, std::string text) { facts.push_back({std::move(name), std::move(text)}); };
  const auto attempt = [&](const char* name, const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      facts.push_back({name, error.what(), true});
    }
  };
  attempt("launcher", [&] {
    const Identity identity = identify(environment);
    say("launcher", identity.source);
    if (!identity.ignored.empty()) say("ignored", identity.ignored);
    say("rank", describe_rank(identity));
    if (identity.size_from_pmix) return;
    attempt("meeting", [&] {
      const auto plan = plan_meeting(identity, {}, environment, ancestors);
      say("meeting", describe_meeting(plan));
      say("secret", describe_secret(plan.method, plan.secret.has_value()));
    });
  });
  say("interfaces", net::describe_interfaces(interfaces));
  attempt("interface", [&] {
    const net::InterfaceChoice choice = net::choose_interface(interfaces, environment);
    say("interface", fmt::format("{} {} ({})", choice.name, choice.address, choice.why));
  });
  return facts;
}

}  // namespace lockstep::rendezvous
