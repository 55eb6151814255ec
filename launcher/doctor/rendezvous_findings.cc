// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/rendezvous_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/job/launcher_guard.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/identity/families.h"
#include "runtime/rendezvous/meeting/describe.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"

namespace lockstep::launcher::doctor {
namespace {

using RendezvousMethod = rendezvous::MeetingPlan::RendezvousMethod;

constexpr const char* kWho = "who am I";
constexpr const char* kWhere = "where to meet";
constexpr const char* kAddresses = "addresses";

// A reachable host answers in milliseconds, also across a network.
constexpr std::chrono::seconds kLimit{3};

Finding finding_of(const rendezvous::Fact& fact) {
  const std::string_view name = fact.name;
  const auto* section = name.starts_with("interface")           ? kAddresses
                        : name == "meeting" || name == "secret" ? kWhere
                                                                : kWho;
  if (fact.problem) return problem_of(section, fact.name, fact.text, "start the program with lockstep run");
  return {section, fact.name, fact.text};
}

// Lists the variables from which the identity was read.
Finding variables(const Environment& environment, const rendezvous::Identity& identity) {
  for (const auto& family : rendezvous::families()) {
    const auto reading = family.read(environment, rendezvous::read_launcher_file);
    if (!reading || reading->verdict != rendezvous::Reading::Verdict::rank) continue;
    if (reading->identity.source == identity.source) return {kWho, "variables", reading->variables};
  }
  return {kWho, "variables", "none of a launcher's"};
}

Finding ask_store(const rendezvous::MeetingPlan& plan) {
  const auto address = plan.address.to_string();
  try {
    if (plan.method == RendezvousMethod::agent_store) {
      store::TorchStoreClient agent(plan.address, Deadline::after(kLimit));
      return {kWhere, "store",
              fmt::format("{} answers as a server of PyTorch and has {} keys", address, agent.num_keys())};
    }
    store::TcpStore store({.address = plan.address, .secret = plan.secret, .run_id = plan.run_id, .role = "doctor"},
                          Deadline::after(kLimit));
    return {
        kWhere, "store",
        fmt::format("{} answers{} and has {} keys", address, plan.secret ? " to this secret" : "", store.num_keys())};
  } catch (const Error& error) {
    return problem_of(kWhere, "store", error.what(), "see whether the launcher that set these variables still runs");
  }
}

// Listens as rank 0 would, or looks the address up as the other ranks do.
Finding try_address(const rendezvous::MeetingPlan& plan, const rendezvous::Identity& identity) {
  const std::string address = plan.address.to_string();
  const auto found = net::look_up(plan.address.host);
  if (!found.is_known)
    return problem_of(kWhere, "store", found.problem, "give rank 0's host by a name or address that this host knows");
  if (identity.rank != 0) return {kWhere, "store", fmt::format("{} is {} here", plan.address.host, found.address)};
  try {
    const auto place = rendezvous::listen_place(plan, identity, found);
    net::tcp_listen(found.is_here ? place.listen : plan.address);
    if (!place.warning.empty()) {
      Finding note = problem_of(kWhere, "store", place.warning, {});
      note.health = Health::note;
      return note;
    }
    return {kWhere, "store", fmt::format("{} is an address of this host and free: rank 0 can host it", address)};
  } catch (const Error& error) {
    return {kWhere, "store", error.what(), Health::problem,
            "set MASTER_ADDR to an address of rank 0's host, and MASTER_PORT to a port that is free on that host"};
  }
}

// Returns facts that describe_rendezvous, which opens no connection, can't know, and repeats none of its own.
Findings look(const Environment& environment, const std::vector<Ancestor>& ancestors) {
  Findings findings;
  auto identity = rendezvous::identify(environment);
  findings.push_back(variables(environment, identity));
  if (identity.size_from_pmix) {
    rendezvous::ask_launcher(identity, Deadline::after(kLimit));
    findings.push_back({kWho, "rank, asked of PMIx", fmt::format("{}/{}", identity.rank, identity.world_size)});
  }
  const auto plan = rendezvous::plan_meeting(identity, {}, environment, ancestors);
  if (plan.method == RendezvousMethod::launcher_store || plan.method == RendezvousMethod::agent_store)
    findings.push_back(ask_store(plan));
  if (plan.method == RendezvousMethod::address) findings.push_back(try_address(plan, identity));
  return findings;
}

}  // namespace

Findings rendezvous_findings(const Environment& environment) {
  const auto interfaces = net::interfaces_of_this_host();
  const auto ancestors = ancestors_of_this_process();
  Findings findings;
  for (const auto& fact : rendezvous::describe_rendezvous(environment, ancestors, interfaces)) {
    findings.push_back(finding_of(fact));
  }
  if (count_problems(findings) == 0) {
    try {
      auto seen = look(environment, ancestors);
      std::move(seen.begin(), seen.end(), std::back_inserter(findings));
    } catch (const Error& error) {
      findings.push_back(problem_of(kWhere, "launcher", error.what(), "start the program with lockstep run"));
    }
  }
  constexpr auto place = [](const Finding& finding) {
    return finding.section == kWho ? 0 : finding.section == kWhere ? 1 : 2;
  };
  std::ranges::stable_sort(findings, [&](const auto& one, const auto& other) { return place(one) < place(other); });
  return findings;
}

}  // namespace lockstep::launcher::doctor
